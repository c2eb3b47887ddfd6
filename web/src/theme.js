// Theme of the system, or the chosen one.

import { byId } from "./elements.js";

export function prepareTheme() {
  const choice = byId("theme");
  try {
    choice.value = localStorage.getItem("epbuild-theme") ?? "";
  } catch {
    /* a page that is opened from a file may have no storage */
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
      /* then it is chosen for this time only */
    }
  });
  apply();
}
