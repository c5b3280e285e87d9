/* What is wider than the page scrolls in a box of its own. A box that scrolls can be reached by keyboard. */
{
  const boxes = ".md-typeset__scrollwrap, .matrix, .equations"
  const mark = () => {
    for (const box of document.querySelectorAll(boxes)) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
      else box.removeAttribute("tabindex")
    }
  }
  const begin = () => {
    mark()
    addEventListener("resize", mark)
    addEventListener("toggle", mark, true)
    // The theme wraps tables when its own script runs, which may be later.
    new MutationObserver(mark).observe(document.body, { childList: true, subtree: true })
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin)
  else begin()
}
