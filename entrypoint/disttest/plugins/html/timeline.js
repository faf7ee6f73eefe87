// The timeline: slots down, time across. A canvas, since thousands of bars are too many for elements.
(function () {
  const line = DATA.timeline;
  const canvas = $("chart");
  const tip = $("tip");
  if (!line.slots.length) {
    canvas.replaceWith(el("p", { class: "muted" }, "Nothing ran long enough to be drawn."));
    $("chart-help").hidden = true;
    return;
  }
  const BAR = { test: 0, attempt: 1, kind: 2, start: 3, end: 4, lanes: 5 };
  const pen = canvas.getContext("2d");
  const lane = Math.max(8, Math.min(26, Math.floor(1400 / line.slots.length)));
  const axis = 42; // a row for the times, a row for the marks
  const full = Math.max(line.makespan, line.bound, 1e-6) * 1.02;
  const bars = line.bars;
  // Adjacent lanes of a world are drawn as one block.
  const blocks = line.lanes.map((lanes) => {
    const found = [];
    for (const index of lanes) {
      const last = found[found.length - 1];
      if (last && last[1] === index) last[1] = index + 1;
      else found.push([index, index + 1]);
    }
    return found;
  });
  let view = [0, full];
  let shown = null; // null: all tests; else a set of those that pass the filters
  let current = -1; // the bar that the keyboard is on
  let width = 0;
  let left = 0;

  function x(time) { return left + ((time - view[0]) / (view[1] - view[0])) * (width - left); }
  function timeAt(px) { return view[0] + ((px - left) / (width - left)) * (view[1] - view[0]); }

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  }

  function resize() {
    const ratio = window.devicePixelRatio || 1;
    width = canvas.parentElement.clientWidth - 2;
    const height = axis + line.slots.length * lane + 4;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw();
  }

  function draw() {
    const colour = colours();
    const height = axis + line.slots.length * lane + 4;
    pen.clearRect(0, 0, width, height);
    pen.font = "12px ui-monospace, 'DejaVu Sans Mono', monospace";
    pen.textBaseline = "middle";
    const labels = line.slots.map((slot, index) => `${slot} ${Math.round((100 * line.busy[index]) / (line.makespan || 1))}%`);
    left = width < 480 ? 78 : Math.ceil(Math.max(...labels.map((label) => pen.measureText(label).width))) + 14;
    drawLanes(colour, height, width < 480 ? line.slots : labels);
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width - left, height);
    pen.clip();
    drawTicks(colour, height);
    drawWorlds(colour);
    drawBars(colour);
    const tunes = $("schedule").open; // the marks are for readers who tune the schedule
    if (tunes) drawMark(colour, line.makespan, height, []);
    if (tunes) drawMark(colour, line.bound, height, [2, 3]);
    drawNames(colour); // all words after all lines, so that none is crossed out
    const taken = tunes ? nameMark(colour, line.makespan, "makespan") : undefined;
    if (tunes) nameMark(colour, line.bound, "lower bound", taken);
    pen.restore();
  }

  function drawLanes(colour, height, labels) {
    for (let index = 0; index < line.slots.length; index++) {
      pen.fillStyle = colour(index % 2 ? "bg" : "lane");
      pen.fillRect(0, axis + index * lane, width, lane);
      if (lane < 12 && index % 4) continue;
      pen.fillStyle = colour("text");
      pen.fillText(labels[index], 6, axis + index * lane + lane / 2, left - 10);
    }
  }

  function drawTicks(colour, height) {
    const rough = ((view[1] - view[0]) / Math.max(1, (width - left) / 90));
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
    for (let time = Math.ceil(view[0] / step) * step; time <= view[1]; time += step) {
      pen.fillStyle = colour("line");
      pen.fillRect(Math.round(x(time)), 18, 1, height);
      pen.fillStyle = colour("muted");
      const text = time === 0 ? "0" : seconds(time);
      if (x(time) + 3 + pen.measureText(text).width <= width) pen.fillText(text, x(time) + 3, 10);
    }
  }

  function drawWorlds(colour) {
    pen.fillStyle = colour("world");
    for (const [lanes, start, end] of line.worlds) {
      if (end < view[0] || start > view[1]) continue;
      for (const [from, to] of blocks[lanes]) {
        pen.fillRect(x(start), axis + from * lane + 1, Math.max(1, x(end) - x(start)), (to - from) * lane - 2);
      }
    }
  }

  // Calls back with the place of each block of each bar in view.
  function eachBlock(paint) {
    bars.forEach((bar, index) => {
      if (bar[BAR.end] < view[0] || bar[BAR.start] > view[1]) return;
      const from = x(bar[BAR.start]);
      const wide = Math.max(1, x(bar[BAR.end]) - from - (x(bar[BAR.end]) - from > 4 ? 1 : 0));
      pen.globalAlpha = shown && !shown.has(bar[BAR.test]) ? 0.15 : 1;
      for (const [first, last] of blocks[bar[BAR.lanes]]) {
        paint(bar, index, from, axis + first * lane + 2, wide, (last - first) * lane - 4);
      }
    });
    pen.globalAlpha = 1;
  }

  function drawBars(colour) {
    const fills = DATA.kinds.map(colour);
    const ink = colour("on-colour");
    eachBlock((bar, index, from, top, wide, high) => {
      pen.fillStyle = fills[bar[BAR.kind]];
      pen.fillRect(from, top, wide, high);
      if (bar[BAR.kind] < 2) hatch(ink, from, top, wide, high);
      if (index === current) outline(colour, from, top, wide, high);
    });
  }

  function drawNames(colour) {
    const fills = DATA.kinds.map(colour);
    const ink = colour("on-colour");
    eachBlock((bar, _, from, top, wide, high) => {
      if (wide > 60) label(bar, ink, from, top, wide, high, fills[bar[BAR.kind]]);
    });
  }

  // Not by colour alone: what failed is hatched.
  function hatch(ink, from, top, wide, high) {
    pen.save();
    pen.beginPath();
    pen.rect(from, top, wide, high);
    pen.clip();
    pen.strokeStyle = ink;
    pen.globalAlpha *= 0.35;
    pen.beginPath();
    const begin = Math.max(from, left) - high;
    for (let at = begin; at < Math.min(from + wide, width); at += 7) {
      pen.moveTo(at, top + high);
      pen.lineTo(at + high, top);
    }
    pen.stroke();
    pen.restore();
  }

  function outline(colour, from, top, wide, high) {
    pen.strokeStyle = colour("text");
    pen.lineWidth = 2;
    pen.strokeRect(from - 1, top - 1, wide + 2, high + 2);
    pen.lineWidth = 1;
  }

  function label(bar, ink, from, top, wide, high, fill) {
    const name = DATA.tests[bar[BAR.test]][TEST.name].split("::").pop();
    const begin = Math.max(from, left) + 4;
    const room = from + wide - begin - 4;
    if (room < 40) return;
    let text = name;
    while (text.length > 3 && pen.measureText(text).width > room) text = `${text.slice(0, Math.max(3, Math.floor(text.length * 0.85) - 1))}…`;
    pen.fillStyle = fill; // over the hatching and the marks
    pen.fillRect(begin - 2, top + high / 2 - 8, Math.min(room, pen.measureText(text).width) + 4, 16);
    pen.fillStyle = ink;
    pen.fillText(text, begin, top + high / 2, room);
  }

  function drawMark(colour, time, height, dash) {
    pen.strokeStyle = colour("text");
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(x(time), axis - 20);
    pen.lineTo(x(time), height);
    pen.stroke();
    pen.setLineDash([]);
  }

  // Where its text stands; without a text where there is no room beside the other one: the words above have both.
  function nameMark(colour, time, name, taken = [Infinity, Infinity]) {
    const text = `${name} ${seconds(time)}`;
    const long = pen.measureText(text).width;
    const begin = x(time) - long - 6 > left ? x(time) - long - 6 : x(time) + 6;
    if (begin - 2 < taken[1] && begin + long + 2 > taken[0]) return taken;
    pen.fillStyle = colour("bg");
    pen.fillRect(begin - 2, axis - 20, long + 4, 16);
    pen.fillStyle = colour("text");
    pen.fillText(text, begin, axis - 11);
    return [begin - 2, begin + long + 2];
  }

  function barAt(px, py) {
    const time = timeAt(px);
    const slack = (view[1] - view[0]) / (width - left) * 2;
    const row = Math.floor((py - axis) / lane);
    for (let index = bars.length - 1; index >= 0; index--) {
      const bar = bars[index];
      if (time < bar[BAR.start] - slack || time > bar[BAR.end] + slack) continue;
      if (line.lanes[bar[BAR.lanes]].includes(row)) return index;
    }
    return -1;
  }

  function words(bar) {
    const test = DATA.tests[bar[BAR.test]];
    const slots = line.lanes[bar[BAR.lanes]].map((index) => line.slots[index]).join(", ");
    const tries = test[TEST.attempts] > 1 ? `, attempt ${bar[BAR.attempt]} of ${test[TEST.attempts]}` : "";
    return [
      test[TEST.name],
      `${word(DATA.kinds[bar[BAR.kind]])} · ${DATA.shapes[test[TEST.shape]]}${tries} · ${seconds(bar[BAR.end] - bar[BAR.start])}, from ${seconds(bar[BAR.start])}`,
      `on ${slots}`,
      test[TEST.message],
    ].filter(Boolean);
  }

  function showTip(index, px, py) {
    tip.hidden = index < 0;
    if (index < 0) return;
    tip.replaceChildren(...words(bars[index]).map((text, row) => el("div", null, row ? bidi(text) : el("b", null, bidi(text)))));
    tip.style.left = `${Math.max(0, Math.min(px + 14, width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${py + 16}px`;
  }

  function zoom(factor, around) {
    const middle = around === undefined ? (view[0] + view[1]) / 2 : around;
    const span = Math.min(full, Math.max(full / 1e5, (view[1] - view[0]) * factor));
    const share = (middle - view[0]) / (view[1] - view[0]);
    look(middle - share * span, span);
  }

  function look(start, span) {
    const begin = Math.max(0, Math.min(full - span, start));
    view = [begin, begin + span];
    canvas.dataset.view = `${view[0].toFixed(4)} ${view[1].toFixed(4)}`;
    draw();
  }

  function walk(dx, dy) {
    if (current < 0) return select(0);
    const now = bars[current];
    const rows = line.lanes[now[BAR.lanes]];
    let best = -1;
    let least = Infinity;
    bars.forEach((bar, index) => {
      if (index === current) return;
      const lanes = line.lanes[bar[BAR.lanes]];
      let far;
      if (dx) {
        if (!lanes.some((row) => rows.includes(row))) return;
        far = (bar[BAR.start] - now[BAR.start]) * dx;
      } else {
        const step = dy > 0 ? lanes[0] - rows[rows.length - 1] : rows[0] - lanes[lanes.length - 1];
        if (step <= 0) return;
        far = step * 1e6 + Math.abs(bar[BAR.start] - now[BAR.start]);
      }
      if (far > 0 && far < least) { least = far; best = index; }
    });
    if (best >= 0) select(best);
  }

  function select(index) {
    current = index;
    const bar = bars[index];
    const span = view[1] - view[0];
    if (bar[BAR.start] < view[0] || bar[BAR.end] > view[1]) look(bar[BAR.start] - span / 4, span);
    $("chart-said").textContent = words(bar).join(". ");
    draw();
    showTip(index, x(Math.max(view[0], bar[BAR.start])), axis + line.lanes[bar[BAR.lanes]][0] * lane);
  }

  const KEYS = {
    ArrowLeft: () => walk(-1, 0), ArrowRight: () => walk(1, 0), ArrowUp: () => walk(0, -1), ArrowDown: () => walk(0, 1),
    Home: () => select(0), End: () => select(bars.length - 1),
    "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => look(0, full),
    Enter: () => { if (current >= 0) page.open(bars[current][BAR.test]); },
    Escape: () => showTip(-1),
  };

  canvas.addEventListener("keydown", (event) => {
    if (!bars.length || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  canvas.addEventListener("blur", () => showTip(-1));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, timeAt(event.offsetX));
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { from: event.offsetX, view: [...view], moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return showTip(barAt(event.offsetX, event.offsetY), event.offsetX, event.offsetY);
    if (Math.abs(event.offsetX - drag.from) < 4 && !drag.moved) return undefined;
    drag.moved = true;
    const span = drag.view[1] - drag.view[0];
    return look(drag.view[0] - ((event.offsetX - drag.from) / (width - left)) * span, span);
  });
  canvas.addEventListener("pointerup", (event) => {
    const clicked = drag && !drag.moved;
    drag = null;
    const index = clicked ? barAt(event.offsetX, event.offsetY) : -1;
    if (index >= 0) { current = index; page.open(bars[index][BAR.test]); }
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { if (!drag) showTip(-1); });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(event.offsetX)));
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => ({ in: () => zoom(0.5), out: () => zoom(2), all: () => look(0, full) })[button.dataset.zoom]());
  }

  const used = new Set(bars.map((bar) => bar[BAR.kind]));
  $("legend").append(...DATA.kinds.filter((_, index) => used.has(index)).map((kind) => {
    const mark = el("i", null);
    mark.style.background = ["failed", "infrastructure"].includes(kind)
      ? `repeating-linear-gradient(135deg, var(--${kind}) 0 3px, color-mix(in srgb, var(--${kind}) 60%, var(--on-colour)) 3px 4px)` : `var(--${kind})`;
    return el("span", null, mark, word(kind));
  }));
  const total = line.busy.reduce((sum, value, index) => sum + (line.slots[index] === "controller" ? 0 : value), 0);
  const slots = line.slots.filter((slot) => slot !== "controller").length;
  if (slots && line.makespan) {
    $("utilisation").textContent = `slots busy ${Math.round((100 * total) / (slots * line.makespan))} % of ${seconds(line.makespan)}; no schedule takes less than ${seconds(line.bound)}`;
  }
  page.filters.push((matching) => { shown = matching; draw(); });
  page.redraw.push(draw);
  $("schedule").addEventListener("toggle", draw);
  new ResizeObserver(resize).observe(canvas.parentElement);
  canvas.dataset.view = `${view[0].toFixed(4)} ${view[1].toFixed(4)}`;
  resize();
})();
