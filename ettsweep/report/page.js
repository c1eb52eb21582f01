// The page itself: its theme, commands to copy, and the next edition of one that is still rewritten.
"use strict";
(() => {
  const root = document.documentElement;

  // --- theme ---

  const THEMES = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  let theme = memory.theme;
  const tell = () => { button.textContent = `Theme: ${theme}`; };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    memory.theme = theme;
    tell();
  });
  tell();
  button.hidden = false;

  // --- commands to copy ---

  const copied = (code) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(code.textContent).then(() => true, () => byHand(code));
    return Promise.resolve(byHand(code));
  };
  const byHand = (code) => {  // where a page may not reach the clipboard, as of some files
    getSelection().selectAllChildren(code);
    const done = document.execCommand("copy");
    if (done) getSelection().removeAllRanges();
    return done;
  };
  for (const copy of document.querySelectorAll(".copy")) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      copy.textContent = (await copied(copy.previousElementSibling)) ? "Copied" : "Press Ctrl-C";
      setTimeout(() => { copy.textContent = "Copy"; }, 2000);
    });
  }

  // --- the next edition ---

  const LOOK_MS = 2000;
  const look = () => {
    const script = document.createElement("script");
    script.src = `latest.js?${Date.now()}`;
    script.onload = script.onerror = () => { script.remove(); setTimeout(look, LOOK_MS); };
    document.head.append(script);
  };
  window.ettsweepLatest = (edition) => {
    if (edition === root.dataset.live) return;
    const heights = [...document.querySelectorAll("figure[data-figure]")].map((figure) => [figure.dataset.figure, figure.querySelector(".drawing").offsetHeight]);
    memory.set("place", { scroll: window.scrollY, heights: Object.fromEntries(heights) });
    location.reload();
  };
  const place = memory.get("place");
  const backToPlace = () => place && window.scrollTo({ top: place.scroll, behavior: "instant" });
  if (place) {
    history.scrollRestoration = "manual";
    memory.set("place", null);
    for (const figure of document.querySelectorAll("figure[data-figure]")) {
      figure.querySelector(".drawing").style.minHeight = `${place.heights[figure.dataset.figure] || 0}px`;
    }
    backToPlace();
  }

  figures.drawAll().then(() => {
    for (const drawing of document.querySelectorAll(".drawing")) drawing.style.minHeight = "";
    backToPlace();
    root.dataset.ready = "true";
    if (root.dataset.live) setTimeout(look, LOOK_MS);
  });
})();
