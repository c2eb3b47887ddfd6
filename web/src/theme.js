// Color theme: the system's theme, or the user's choice.

import { byId } from "./elements.js";

export function prepareTheme() {
  const choice = byId("theme");
  try {
    choice.value = localStorage.getItem("epbuild-theme") ?? "";
  } catch {
    /* a page opened from a file may have no storage */
  }
  const apply = () => {
    if (choice.value) document.documentElement.dataset.theme = choice.value;
    else delete document.documentElement.dataset.theme;
  };
  choice.addEventListener("change", () => {
    apply();
    try {
      localStorage.setItem("epbuild-theme", choice.value);
    } catch {
      /* the choice is not saved */
    }
  });
  apply();
}
