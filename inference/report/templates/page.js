"use strict";
// Tables that sort, tips on what is pointed at, a button that copies, and details that open for the printer. The page shows all its content without it.

(() => {
  const value = (row, column) => row.children[column].dataset.v ?? "";

  function compare(one, other, sign) {
    if (one === "" || other === "") return one === other ? 0 : one === "" ? 1 : -1; // what is unknown comes last either way
    const a = Number(one), b = Number(other);
    return sign * (Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b);
  }

  function sort(table, column, head) {
    const rising = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => compare(value(a, column), value(b, column), rising ? 1 : -1));
    body.append(...rows);
    const said = document.getElementById("sorted");
    if (said) said.textContent = `Sorted by ${head.textContent.trim()}, ${rising ? "ascending" : "descending"}.`;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sort(table, column, head));
    });
  }

  // Tips: the nearest mark within reach of the pointer. The browser's own, slower tip is replaced.
  const tip = document.getElementById("tip");
  const reach = 16;
  let hot = null;

  for (const title of document.querySelectorAll("figure svg title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }

  function hide() {
    tip.hidden = true;
    hot?.classList.remove("hot");
    hot = null;
  }

  function nearest(picture, x, y, target) {
    let best = null, least = reach;
    for (const mark of picture.querySelectorAll("use[data-tip], circle[data-tip]")) {
      const box = mark.getBoundingClientRect();
      const away = Math.hypot(box.left + box.width / 2 - x, box.top + box.height / 2 - y);
      if (away < least) [best, least] = [mark, away];
    }
    return best ?? target.closest("[data-tip]");
  }

  function show(event) {
    const picture = event.target.closest?.("figure svg");
    const mark = picture && nearest(picture, event.clientX, event.clientY, event.target);
    if (!mark) return hide();
    if (mark !== hot) {
      hide();
      hot = mark;
      hot.classList.add("hot");
      tip.textContent = mark.dataset.tip;
      tip.hidden = false;
    }
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, event.clientX + 12), innerWidth - box.width - 4);
    const above = event.clientY - box.height - 10;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : event.clientY + 16}px`;
  }

  document.addEventListener("pointermove", show, { passive: true });
  document.addEventListener("pointerdown", show, { passive: true });
  document.addEventListener("scroll", hide, { passive: true, capture: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());

  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(source); // without a clipboard the text is selected for the reader to copy
        button.textContent = "selected";
      }
      setTimeout(() => (button.textContent = "copy"), 2000);
    });
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
})();
