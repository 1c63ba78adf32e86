// The parts of the page, one at a time (w3.org/WAI/ARIA/apg/patterns/tabs).

const NAMES = ["downloads", "feeds", "pool", "settings"];
const tabOf = (name) => document.getElementById(`tab-${name}`);

export function wireTabs(onShown) {
  NAMES.forEach((name, place) => {
    tabOf(name).addEventListener("click", () => show(name, onShown));
    tabOf(name).addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const step = { ArrowRight: 1, ArrowLeft: NAMES.length - 1 }[event.key];
      if (!step) return;
      const next = NAMES[(place + step) % NAMES.length];
      show(next, onShown);
      tabOf(next).focus();
    });
  });
  show(NAMES.includes(location.hash.slice(1)) ? location.hash.slice(1) : NAMES[0], onShown);
}

function show(name, onShown) {
  for (const each of NAMES) {
    tabOf(each).setAttribute("aria-selected", String(each === name));
    tabOf(each).tabIndex = each === name ? 0 : -1;
    document.getElementById(`panel-${each}`).hidden = each !== name;
  }
  history.replaceState(null, "", `#${name}`);
  onShown(name);
}
