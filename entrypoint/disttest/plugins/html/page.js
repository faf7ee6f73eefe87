"use strict";
// What all parts of the page share: the data, small helpers, the theme. Text reaches the page only as text.
const DATA = JSON.parse(document.getElementById("data").textContent);
const TEST = { name: 0, suite: 1, shape: 2, kind: 3, time: 4, message: 5, attempts: 6, folder: 7, ranks: 8 };
const WORDS = { xfailed: "xfail", not_run: "not run" };
const page = { filters: [], redraw: [] };

function $(id) { return document.getElementById(id); }

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

function seconds(value) {
  if (!(value > 0)) return "0 s";
  if (value < 0.9995) return `${Math.max(1, Math.round(value * 1000))} ms`;
  if (value < 59.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor(whole / 60) % 60).padStart(2, "0")} min`;
}

function word(kind) { return WORDS[kind] || kind; }
function kindOf(test) { return DATA.kinds[test[TEST.kind]]; }
function badge(kind, text) { return el("span", { class: `badge ${kind}` }, text || word(kind)); }
function bidi(text) { return el("bdi", null, text); }

function theme(name) {
  document.documentElement.dataset.theme = name;
  const button = $("theme");
  button.setAttribute("aria-pressed", String(name === "dark"));
  for (const redraw of page.redraw) redraw();
}

(function () {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("disttest-theme"); } catch { /* a file may have no storage */ }
  theme(chosen === "dark" || chosen === "light" ? chosen : dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => { if (!chosen) theme(dark.matches ? "dark" : "light"); });
  $("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("disttest-theme", chosen); } catch { /* as above */ }
    theme(chosen);
  });
})();
