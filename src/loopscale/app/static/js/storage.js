// What this browser keeps between visits: one's own laws, fits and pinned scenarios.
export function readStored(name) {
  try {
    const value = JSON.parse(localStorage.getItem(`loopscale.${name}`));
    return Array.isArray(value) ? value : [];
  } catch {
    return [];
  }
}

// Storage is small and may be switched off: the oldest items go first, and without any the page still works.
export function writeStored(name, items) {
  for (let first = 0; first <= items.length; first++) {
    try {
      localStorage.setItem(`loopscale.${name}`, JSON.stringify(items.slice(first)));
      return;
    } catch {
      // too large: try again without the oldest
    }
  }
}
