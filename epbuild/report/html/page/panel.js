// The panel: details of one thing, in a dialog at the side. Esc closes it, and it goes back to what was shown before.

const shownBefore = [];
let shownNow = null;

/** Show what `contents` makes under a `title`. */
function openPanel(title, contents) {
  if (shownNow) shownBefore.push(shownNow);
  shownNow = { title, contents };
  fillPanel();
}

function fillPanel() {
  const panel = byId("panel");
  byId("panel-title").textContent = shownNow.title;
  byId("panel-body").replaceChildren(...[shownNow.contents()].flat(Infinity).filter(Boolean));
  byId("panel-back").hidden = shownBefore.length === 0;
  if (!panel.open) panel.showModal();
  byId("panel-body").scrollTop = 0;
  byId("panel-title").focus();
}

function closePanel() {
  byId("panel").close();
}

function preparePanel() {
  byId("panel-close").addEventListener("click", closePanel);
  byId("panel-back").addEventListener("click", () => {
    shownNow = shownBefore.pop();
    fillPanel();
  });
  byId("panel").addEventListener("click", (event) => {
    if (event.target === byId("panel")) closePanel(); // outside of what is in it
  });
  byId("panel").addEventListener("close", () => {
    shownBefore.length = 0;
    shownNow = null;
  });
}

/** A badge with the outcome of a step. */
function badge(words, kind) {
  return el("span", { class: `badge ${kind.replaceAll(" ", "-")}` }, words);
}
