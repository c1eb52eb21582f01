// The page itself: commands to copy, and its figures.
"use strict";
(() => {
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

  figures.drawAll().then(() => { document.documentElement.dataset.ready = "true"; });
})();
