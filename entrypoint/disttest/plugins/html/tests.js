// The list of tests: filtered, sorted, and put on the page a piece at a time.
(function () {
  const PIECE = 200;
  const body = document.querySelector("#list tbody");
  const more = $("more");
  const wanted = { text: "", suite: "", shape: "", kinds: new Set() };
  const lower = DATA.tests.map((test) => `${test[TEST.name]} ${test[TEST.message]}`.toLowerCase());
  let order = { by: "kind", down: false };
  let matching = [];
  let shown = 0;

  for (const [id, names] of [["f-suite", DATA.suites], ["f-shape", DATA.shapes]]) {
    $(id).append(...names.map((name, index) => el("option", { value: String(index) }, name)));
  }
  const buttons = DATA.kinds.map((kind, index) => {
    const number = DATA.tests.filter((test) => test[TEST.kind] === index).length;
    if (!number) return null;
    return el("button", {
      type: "button", "aria-pressed": "false", "data-kind": kind,
      on: { click: (event) => {
        const on = !wanted.kinds.has(index);
        if (on) wanted.kinds.add(index); else wanted.kinds.delete(index);
        event.currentTarget.setAttribute("aria-pressed", String(on));
        filter();
      } },
    }, `${word(kind)} ${number.toLocaleString("en")}`);
  });
  $("f-kinds").append(...buttons.filter(Boolean));

  function passes(test, index) {
    return (!wanted.kinds.size || wanted.kinds.has(test[TEST.kind]))
      && (wanted.suite === "" || test[TEST.suite] === Number(wanted.suite))
      && (wanted.shape === "" || test[TEST.shape] === Number(wanted.shape))
      && wanted.text.split(/\s+/).every((part) => lower[index].includes(part));
  }

  const KEYS = {
    kind: (index) => DATA.tests[index][TEST.kind], name: (index) => DATA.tests[index][TEST.name],
    suite: (index) => DATA.tests[index][TEST.suite], shape: (index) => DATA.tests[index][TEST.shape],
    time: (index) => -DATA.tests[index][TEST.time],
  };

  function filter() {
    matching = [];
    DATA.tests.forEach((test, index) => { if (passes(test, index)) matching.push(index); });
    const key = KEYS[order.by];
    matching.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a - b) * (order.down ? -1 : 1));
    const all = matching.length === DATA.tests.length;
    for (const tell of page.filters) tell(all ? null : new Set(matching));
    const took = matching.reduce((sum, index) => sum + DATA.tests[index][TEST.time], 0);
    $("shown").textContent = `${matching.length.toLocaleString("en")} of ${DATA.tests.length.toLocaleString("en")} tests, ${seconds(took)}`;
    body.replaceChildren();
    shown = 0;
    extend();
  }

  function extend() {
    const piece = matching.slice(shown, shown + PIECE);
    body.append(...piece.map(row));
    shown += piece.length;
    more.hidden = shown >= matching.length;
    more.textContent = `Show ${Math.min(PIECE, matching.length - shown)} more`;
  }

  function row(index) {
    const test = DATA.tests[index];
    const tries = test[TEST.attempts] > 1 ? ` (${test[TEST.attempts]} attempts)` : "";
    return el("tr", null,
      el("td", null, badge(kindOf(test))),
      el("td", null,
        el("button", { type: "button", class: "link", "data-open": String(index) }, bidi(test[TEST.name])), tries,
        el("div", { class: "says narrow" }, `${DATA.suites[test[TEST.suite]]} · ${DATA.shapes[test[TEST.shape]]}`),
        test[TEST.message] ? el("div", { class: "says" }, bidi(test[TEST.message])) : null),
      el("td", null, DATA.suites[test[TEST.suite]]),
      el("td", null, DATA.shapes[test[TEST.shape]]),
      el("td", { class: "n" }, seconds(test[TEST.time])));
  }

  $("f-text").addEventListener("input", (event) => { wanted.text = event.target.value.trim().toLowerCase(); filter(); });
  $("f-suite").addEventListener("change", (event) => { wanted.suite = event.target.value; filter(); });
  $("f-shape").addEventListener("change", (event) => { wanted.shape = event.target.value; filter(); });
  document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => {
    extend();
    const next = body.rows[shown - Math.min(PIECE, shown)] || body.rows[body.rows.length - 1];
    next?.querySelector("button")?.focus();
  });
  for (const button of document.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => {
      order = { by: button.dataset.sort, down: order.by === button.dataset.sort && !order.down };
      for (const other of document.querySelectorAll("[data-sort]")) {
        const sorted = other === button ? (order.down ? "descending" : "ascending") : "none";
        other.closest("th").setAttribute("aria-sort", sorted);
      }
      filter();
    });
  }
  filter();
})();
