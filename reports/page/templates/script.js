(() => {
  "use strict";
  document.documentElement.classList.add("js");
  const said = document.getElementById("said");

  // Copying: the clipboard where the browser lets a file use it, else a selection, as browsers did before.
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "aside";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const done = await copy(document.getElementById(button.dataset.copy).textContent);
    button.focus();
    button.textContent = done ? "Copied" : "Not copied";
    said.textContent = done ? "Copied to the clipboard" : "The browser does not allow copying";
    setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 1600);
  });

  // A token that is pointed at or has the focus shows its path alone, and its steps.
  function show(token) {
    const picture = token.closest("[data-picture]");
    for (const part of picture.querySelectorAll(".token, .way")) {
      part.classList.toggle("on", (part.dataset.steps ?? part.dataset.way) === token.dataset.steps);
    }
    picture.classList.add("one");
    for (const steps of picture.querySelectorAll(".steps")) {
      steps.classList.toggle("current", steps.id === token.dataset.steps);
    }
  }
  function leave(picture) {
    const focused = picture.querySelector(".token:focus");
    if (focused) return show(focused);
    picture.classList.remove("one");
    for (const part of picture.querySelectorAll(".on")) part.classList.remove("on");
  }
  for (const name of ["focusin", "pointerover", "click"]) {
    document.addEventListener(name, (event) => {
      const token = event.target.closest?.(".token");
      if (token) show(token);
    });
  }
  for (const name of ["focusout", "pointerout"]) {
    document.addEventListener(name, (event) => {
      const token = event.target.closest?.(".token");
      if (token) setTimeout(() => leave(token.closest("[data-picture]")), 0);
    });
  }

  // An address of one failure opens it.
  function open() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!(target instanceof HTMLDetailsElement)) return;
    for (let each = target; each; each = each.parentElement.closest("details")) each.open = true;
    target.scrollIntoView();
  }
  addEventListener("hashchange", open);
  open();
})();
