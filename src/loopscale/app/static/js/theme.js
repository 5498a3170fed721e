// Runs before the first paint, so that the page never flashes in the other theme (the reader's choice, or the system's).
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const saved = localStorage.getItem("theme");
    const system = dark.matches ? "dark" : "light";
    document.documentElement.dataset.theme = saved === "light" || saved === "dark" ? saved : system;
  };
  apply();
  // The page's file holds the first view; a link may lead to another.
  if (location.hash.length > 1) document.documentElement.dataset.link = "yes";
  dark.addEventListener("change", apply);
})();
