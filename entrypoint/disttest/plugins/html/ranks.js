// One test in full: its attempts, what each rank did, and the logs of all ranks side by side.
(function () {
  const dialog = $("test");
  let details = null;
  let opener = null;

  page.open = function (index) {
    details = details || JSON.parse($("details").textContent);
    const test = DATA.tests[index];
    const found = details[index];
    opener = document.activeElement;
    dialog.replaceChildren(sheet(index, test, found));
    dialog.showModal();
    showDifference();
    dialog.scrollTop = 0;
    history.replaceState(null, "", `#test=${index}`);
  };

  // The box of collectives opens at the first one that the ranks do not share, with two that they do above it.
  function showDifference() {
    for (const box of dialog.querySelectorAll(".collectives")) {
      const rows = [...box.querySelectorAll("tbody tr")];
      const at = rows.findIndex((row) => row.classList.contains("parts"));
      if (at > 2) box.scrollTop = rows[at - 2].offsetTop - box.querySelector("thead").offsetHeight;
    }
  }

  dialog.addEventListener("close", () => {
    dialog.replaceChildren();
    history.replaceState(null, "", location.pathname + location.search + "#tests");
    opener?.focus?.({ preventScroll: true });
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-open]");
    if (button) page.open(Number(button.dataset.open));
  });

  function sheet(index, test, found) {
    const body = el("div", { class: "sheet-body" });
    const node = el("div", { class: "sheet" },
      el("header", null,
        el("div", null,
          el("h2", { id: "test-title" }, badge(kindOf(test), found?.fault), " ", bidi(test[TEST.name])),
          el("p", { class: "muted" }, `${DATA.suites[test[TEST.suite]]} · ${DATA.shapes[test[TEST.shape]]} · ${seconds(test[TEST.time])}`, pastOf(index))),
        el("button", { type: "button", autofocus: true, on: { click: () => dialog.close() } }, "Close")));
    if (!found) {
      node.append(brief(test));
      return node;
    }
    for (const command of found.commands) node.append(pasteable(command));
    const last = found.attempts.length - 1;
    if (last > 0) node.append(tabs(found.attempts, last, (attempt) => { body.replaceChildren(...attemptView(attempt, found)); showDifference(); }));
    body.append(...attemptView(found.attempts[last], found));
    node.append(body);
    return node;
  }

  function brief(test) {
    const links = Array.from({ length: test[TEST.folder] ? test[TEST.ranks] : 0 }, (_, rank) =>
      el("li", null, el("a", { href: `${test[TEST.folder]}rank${rank}.log` }, `log of rank ${rank}`)));
    return el("div", null,
      test[TEST.message] ? el("p", null, bidi(test[TEST.message])) : null,
      links.length ? el("ul", null, ...links) : el("p", { class: "muted" }, "It went well; there is nothing more to tell."));
  }

  function pastOf(index) {
    const past = DATA.history[index];
    if (!past) return "";
    const told = past.map((kind) => (kind < 0 ? "not run" : word(DATA.kinds[kind]))).join(", ");
    return el("span", null, " · earlier runs ", el("span", { class: "squares", role: "img", "aria-label": told, title: told },
      ...past.map((kind) => { const square = el("i"); if (kind >= 0) square.style.background = `var(--${DATA.kinds[kind]})`; return square; })),
      DATA.streaks[index] ? ` · ${DATA.streaks[index]}` : "");
  }

  function pasteable(command) {
    const said = el("span", { role: "status", class: "muted" });
    const copy = el("button", { type: "button", on: { click: async () => {
      try { await navigator.clipboard.writeText(command); said.textContent = "copied"; }
      catch { said.textContent = "select the command and copy it"; }
    } } }, "Copy");
    return el("p", { class: "repeat" }, "$ ", el("code", null, command), " ", copy, " ", said);
  }

  function tabs(attempts, active, choose) {
    const buttons = attempts.map((attempt, index) => el("button", {
      type: "button", "aria-pressed": String(index === active),
      on: { click: () => {
        buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === index)));
        choose(attempt);
      } },
    }, `Attempt ${attempt.attempt}: ${attempt.outcome}`));
    return el("div", { class: "tabs", role: "group", "aria-label": "Attempts" }, ...buttons);
  }

  function attemptView(attempt, found) {
    const parts = [];
    if (attempt.message) parts.push(el("p", { class: "finding" }, bidi(attempt.message)));
    if (attempt.rest) parts.push(el("p", { class: "rest" }, bidi(attempt.rest)));
    const where = [found.place, attempt.who, attempt.phase && `in ${attempt.phase}`];
    parts.push(el("p", { class: "where" }, where.filter(Boolean).join(" · ")));
    if (attempt.notes.length) parts.push(el("ul", null, ...attempt.notes.map((note) => el("li", null, bidi(note)))));
    for (const waits of attempt.waits) parts.push(...page.waits(waits));
    if (attempt.findings.length) parts.push(...page.findings(attempt.findings));
    for (const section of attempt.sections) parts.push(...page.section(section));
    if (attempt.ranks.length) parts.push(el("h3", null, "Ranks"), lanes(attempt));
    if (attempt.collectives) parts.push(...collectives(attempt.collectives, attempt.duration));
    if (attempt.text) parts.push(el("h3", null, "What was found"), el("pre", { tabindex: "0", "aria-label": "What was found" }, attempt.text));
    if (attempt.ranks.some((rank) => rank.text || rank.log || rank.missing)) parts.push(...logs(attempt));
    return parts;
  }

  // Each rank on a lane of its own, from the start of the test to its end.
  function lanes(attempt) {
    const ends = attempt.ranks.map((rank) => Object.values(rank.phases).reduce((sum, part) => sum + part, 0));
    const total = Math.max(attempt.duration, ...ends, 1e-6);
    const culprit = attempt.ranks.find((rank) => rank.rank === attempt.culprit);
    const parted = culprit ? culprit.failed : null;
    return el("div", { class: "lanes", role: "list", "aria-label": `Ranks over ${seconds(total)}` },
      ...attempt.ranks.flatMap((rank) => laneOf(rank, attempt, total, parted)),
      el("div", { class: "axis", "aria-hidden": "true" }, ...[0, 0.5, 1].map((part) => el("span", null, seconds(part * total)))));
  }

  // Phases have lengths but no beginnings: where a rank failed is known, so its phases end there.
  function beginning(rank) {
    if (rank.failed === null || !(rank.phase in rank.phases)) return null;
    let until = 0;
    for (const [phase, long] of Object.entries(rank.phases)) {
      until += long;
      if (phase === rank.phase) break;
    }
    return Math.max(0, rank.failed - until);
  }

  function laneOf(rank, attempt, total, parted) {
    const track = el("div", { class: "track", "aria-hidden": "true" });
    const share = (value) => `${Math.max(0, Math.min(100, (100 * value) / total))}%`;
    const put = (name, from, long, text) => {
      const part = el("span", { class: name, title: text }, text);
      part.style.left = share(from);
      part.style.width = share(long);
      track.append(part);
    };
    const known = attempt.ranks.map(beginning).filter((start) => start !== null);
    const own = beginning(rank);
    const length = Object.values(rank.phases).reduce((sum, part) => sum + part, 0);
    const begun = own === null ? Math.min(...known) : own;
    let at = Number.isFinite(begun) ? Math.min(begun, Math.max(0, total - length)) : 0;
    const ended = rank.how === "ended by disttest";
    for (const [phase, long] of Object.entries(rank.phases)) {
      const bad = ["failed", "error"].includes(rank.how) && rank.phase === phase;
      const cut = ended && rank.phase === phase;
      put(bad ? "bad" : cut ? "waits" : phase, at, long, `${phase} ${seconds(long)}`);
      at += long;
    }
    const gone = rank.failed !== null && rank.failed > at ? rank.failed : at;
    const died = rank.how === "crashed";
    const waited = rank.hung || ended;
    if (died && gone > at) put("waits", at, gone - at, `${rank.phase} ${seconds(gone - at)}`);
    if (waited && total > at) put(rank.hung ? "hung" : "waits", at, total - at, `${rank.hung ? `still in ${rank.phase}` : `${rank.phase}, then ended by disttest`} ${seconds(total - at)}`);
    for (const [time, done] of rank.ticks) {
      const tick = el("i", { class: done ? "tick" : "tick open", title: `collective at ${seconds(time)}` });
      tick.style.left = `min(${share(time)}, calc(100% - 3px))`;
      track.append(tick);
    }
    for (const [time, name] of [[rank.failed, ""], [parted, "part"]]) {
      if (time === null || time === undefined) continue;
      const mark = el("em", { class: name, title: name ? "the first collective that the ranks do not share" : `failed after ${seconds(time)}` });
      mark.style.left = `min(${share(time)}, calc(100% - 3px))`;
      track.append(mark);
    }
    const role = rank.rank === attempt.culprit ? ", culprit" : attempt.victims.includes(rank.rank) ? ", victim" : "";
    const when = rank.failed !== null ? ` after ${seconds(rank.failed)}` : "";
    const text = `${rank.how}${when}${role}`;
    return [el("div", { class: "who", role: "listitem" }, el("b", null, rank.name), ` ${text}`, el("span", { class: "visually-hidden" }, `, in ${rank.phase}. ${rank.message}`)), track];
  }

  // A row for each collective; the first one that the ranks do not share is where they part.
  function collectives(table, duration) {
    const state = (cell) => (cell.done ? `done · ${seconds(cell.at)}` : `waits · ${seconds(cell.at)}, for ${seconds(duration - cell.at)}`);
    const cellOf = (cell) => {
      if (!cell) return el("td", { class: "none" }, "not in its recorder");
      if (cell.unasked) return el("td", { class: "none" }, `not asked: ${cell.unasked}`);
      return el("td", null, el("b", null, cell.op), ` ${state(cell)}`,
        el("div", { class: "small muted" }, bidi([cell.inputs, cell.where].filter(Boolean).join(" · "))));
    };
    const rows = table.rows.map((row) => el("tr", { class: row.parts ? "parts" : null },
      el("th", { scope: "row" }, row.name, row.parts ? el("span", { class: "badge failed" }, "ranks differ") : null),
      ...row.cells.map(cellOf)));
    return [
      el("h3", null, "Collectives"),
      el("div", { class: "scroll collectives", tabindex: "0", role: "region", "aria-label": "Collectives of the ranks" },
        el("table", null,
          el("thead", null, el("tr", null, el("th", { scope: "col" }, "collective"), ...table.ranks.map((name) => el("th", { scope: "col" }, name)))),
          el("tbody", null, ...rows))),
    ];
  }

  function logs(attempt) {
    const ranks = [...attempt.ranks].sort((a, b) => (b.rank === attempt.culprit) - (a.rank === attempt.culprit) || a.rank - b.rank);
    const panes = ranks.map((rank) => pane(rank, attempt));
    const together = el("input", { type: "checkbox", id: "together", checked: true });
    const found = el("span", { class: "muted", role: "status" });
    const search = el("input", { type: "search", placeholder: "in all logs", spellcheck: "false", autocomplete: "off" });
    let hits = [];
    let hit = -1;
    search.addEventListener("input", () => {
      hits = panes.flatMap((entry) => entry.find(search.value.toLowerCase()));
      hit = -1;
      found.textContent = search.value ? `${hits.length} lines; Enter goes to the next` : "";
    });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !hits.length) return;
      event.preventDefault();
      hit = (hit + (event.shiftKey ? hits.length - 1 : 1)) % hits.length;
      hits[hit].scrollIntoView({ block: "center" });
      found.textContent = `${hit + 1} of ${hits.length} lines`;
    });
    let leader = null;
    for (const entry of panes) {
      for (const begin of ["pointerenter", "focus", "wheel"]) entry.box.addEventListener(begin, () => { leader = entry; }, { passive: true });
      entry.box.addEventListener("scroll", () => {
        if (!together.checked || (leader && leader !== entry)) return;
        leader = entry;
        for (const other of panes) if (other !== entry) other.follow(entry);
      }, { passive: true });
    }
    return [
      el("h3", null, "Logs"),
      el("div", { class: "toolbar" }, el("label", null, "Search ", search), found, el("label", null, together, " scroll together, by time where the lines have one")),
      el("div", { class: "ranks", tabindex: "0", role: "region", "aria-label": "Logs of all ranks, side by side" }, ...panes.map((entry) => entry.node)),
    ];
  }

  const LINE = 18;
  const STAMPS = [/\b\d{4}-\d\d-\d\d[T ](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)/, /\b(\d\d):(\d\d):(\d\d(?:[.,]\d+)?)/, /^\[\s*()()(\d+\.\d+)\]/];

  function stamp(text) {
    for (const pattern of STAMPS) {
      const match = pattern.exec(text.slice(0, 80));
      if (match) return Number(match[1] || 0) * 3600 + Number(match[2] || 0) * 60 + Number(match[3].replace(",", "."));
    }
    return null;
  }

  function pane(rank, attempt) {
    const lines = (rank.text || "").split("\n");
    const rows = lines.map((text) => el("div", { class: /^\[… .* cut …\]$/.test(text) ? "cut" : null }, text));
    const box = el("pre", { class: "log", tabindex: "0", "aria-label": `Log of ${rank.name}`, "data-rank": String(rank.rank) });
    const kept = rank.text === undefined ? "Not shown here; open the file." : "The log is empty.";
    const none = rank.missing ? `There is no file ${rank.missing}.` : rank.log ? kept : "No log.";
    box.append(...(rank.text ? rows : [el("div", { class: "cut" }, none)]));
    let last = null;
    const times = lines.map((text) => { const time = stamp(text); last = time === null ? last : time; return last; });
    const role = rank.rank === attempt.culprit ? "culprit" : attempt.victims.includes(rank.rank) ? "victim" : "";
    const node = el("article", { class: role || null },
      el("h4", null, rank.name, role ? el("span", { class: `badge ${role === "culprit" ? "failed" : "skipped"}` }, role) : null,
        rank.log ? el("a", { href: `./${encodeURI(rank.log)}`.replace(/[?#]/g, encodeURIComponent) }, "whole log") : null),
      rank.message ? el("p", { class: "small muted" }, bidi(rank.message)) : null,
      box,
      rank.stacks && !attempt.text.includes(rank.stacks.trim()) ? el("details", null, el("summary", null, "Stacks"), el("pre", { tabindex: "0", "aria-label": `Stacks of ${rank.name}` }, rank.stacks)) : null);
    return {
      node, box, times,
      now() { return times[Math.min(times.length - 1, Math.floor(box.scrollTop / LINE))]; },
      follow(other) {
        const time = other.now();
        const room = box.scrollHeight - box.clientHeight;
        if (time === null || time === undefined || times[times.length - 1] === null) {
          const whole = other.box.scrollHeight - other.box.clientHeight;
          box.scrollTop = whole > 0 ? (other.box.scrollTop / whole) * room : 0;
          return;
        }
        const at = times.findIndex((known) => known !== null && known >= time);
        box.scrollTop = at < 0 ? room : at * LINE;
      },
      find(needle) {
        return rows.filter((row) => {
          const is = Boolean(needle) && row.textContent.toLowerCase().includes(needle);
          row.classList.toggle("hit", is);
          return is;
        });
      },
    };
  }

  const asked = /^#test=(\d+)$/.exec(location.hash);
  if (asked && DATA.tests[Number(asked[1])]) page.open(Number(asked[1]));
})();
