// What the page remembers: the theme on this computer; filters, columns, points and the place, as long as the tab lives.
"use strict";
const memory = (() => {
  const key = `ettsweep:${location.pathname}`;
  const read = (store, name) => {
    try { return JSON.parse(window[store].getItem(name)); } catch { return null; }
  };
  const write = (store, name, value) => {
    try { window[store].setItem(name, JSON.stringify(value)); } catch { /* private windows may keep nothing */ }
  };
  const kept = read("sessionStorage", key) || {};
  return {
    get: (name) => kept[name],
    set(name, value) { kept[name] = value; write("sessionStorage", key, kept); },
    get theme() { return read("localStorage", "ettsweep-theme") || "auto"; },
    set theme(name) { write("localStorage", "ettsweep-theme", name); document.documentElement.dataset.theme = name; },
  };
})();
document.documentElement.dataset.theme = memory.theme;
