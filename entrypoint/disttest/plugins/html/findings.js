// Findings of plugins in an attempt, and ranks that wait for each other: lists side by side, and a graph.
(function () {
  const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
  const SIDE = 380;
  const FLAT = 110;
  const RADIUS = 22;
  const HEAD = 13;

  function svg(tag, attributes, ...children) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  page.findings = function (findings) {
    return [el("h3", null, "Findings"), ...findings.map(finding)];
  };

  page.section = function (section) {
    return [el("h3", null, bidi(section.title)), el("pre", { tabindex: "0" }, section.lines.join("\n"))];
  };

  function finding(found) {
    return el("div", { class: `card ${found.fails ? "failed" : "warned"}` },
      el("p", { class: "finding" }, el("span", { class: `badge ${found.fails ? "failed" : "flaky"}` }, found.title), " ", bidi(found.message)),
      el("p", null, bidi(found.effect)),
      el("p", null, el("b", null, "What to do: "), bidi(found.advice)),
      el("div", { class: "orders", tabindex: "0", role: "region", "aria-label": "What the ranks called, side by side" }, ...found.orders.map(order)));
  }

  // The calls of one rank from top to bottom; those that the finding is about stand out. Where numbers were compared, a
  // mark says whether all ranks had the same: from the first ≠ on the lanes part.
  function order(rank) {
    const calls = rank.calls.map((call) => el("li", { class: [call.decides ? "decides" : "", call.window ? `pending ${call.window}` : ""].join(" ").trim() || null },
      el("span", null, mark(call.same), bidi(call.what)), call.where ? el("code", { class: "small muted" }, call.where) : null));
    return el("div", null, el("h4", null, rank.name), el("ol", null, ...calls));
  }

  function mark(same) {
    if (same === null) return null;
    const text = same ? "the same on all ranks" : "not the same on all ranks";
    return el("span", { class: same ? "muted" : "parted", role: "img", title: text, "aria-label": text }, same ? "= " : "≠ ");
  }

  page.waits = function (waits) {
    const lines = waits.edges.map((edge) => el("li", null, bidi(edge.text)));
    return [el("h3", null, "Who waits for whom"), waits.nodes.length ? graph(waits) : null, el("ul", { class: "waits" }, ...lines)].filter(Boolean);
  };

  // Ranks on a circle (one or two beside each other), an arrow from each to those it waits for. The list below says the same in words.
  function graph(waits) {
    const count = waits.nodes.length;
    const reach = count > 1 ? SIDE / 2 - RADIUS - 8 : 0;
    const [first, height] = count > 2 ? [-Math.PI / 2, SIDE] : [-Math.PI, FLAT];
    const places = new Map(waits.nodes.map((node, index) => {
      const angle = (2 * Math.PI * index) / count + first;
      return [node.rank, [SIDE / 2 + reach * Math.cos(angle), height / 2 + reach * Math.sin(angle)]];
    }));
    const arrows = waits.edges.flatMap((edge) => edge.ranks.map((other) => arrow(places.get(edge.rank), places.get(other), edge.text)));
    const ranks = waits.nodes.map((node) => circle(node, places.get(node.rank)));
    return svg("svg", { viewBox: `0 0 ${SIDE} ${height}`, class: "graph", role: "img", "aria-label": waits.label },
      ...arrows.filter(Boolean), ...ranks);
  }

  // Bent to its left, so that two ranks that wait for each other have two arrows.
  function arrow(from, to, text) {
    if (!from || !to || from === to) return null;
    const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
    const middle = [(from[0] + to[0] + 0.24 * dy) / 2, (from[1] + to[1] - 0.24 * dx) / 2];
    const [start] = towards(from, middle, RADIUS + 2);
    const [tip, x, y] = towards(to, middle, RADIUS + 2);
    const side = (sign) => point([tip[0] + HEAD * (x - 0.45 * sign * y), tip[1] + HEAD * (y + 0.45 * sign * x)]);
    const title = svg("title", {}, text);
    return svg("g", { class: "waits-for" }, title,
      svg("path", { d: `M ${point(start)} Q ${point(middle)} ${point(tip)}` }),
      svg("path", { class: "head", d: `M ${point(tip)} L ${side(1)} L ${side(-1)} z` }));
  }

  // The point at this distance from one place on the way to another, and the direction of that way.
  function towards([x, y], [otherX, otherY], distance) {
    const long = Math.hypot(otherX - x, otherY - y);
    const [dx, dy] = [(otherX - x) / long, (otherY - y) / long];
    return [[x + distance * dx, y + distance * dy], dx, dy];
  }

  function point([x, y]) { return `${x.toFixed(1)} ${y.toFixed(1)}`; }

  function circle(node, [x, y]) {
    return svg("g", { class: node.finished ? "node finished" : "node" },
      svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: String(RADIUS) }),
      svg("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": "middle", "dominant-baseline": "central" }, String(node.rank)));
  }
})();
