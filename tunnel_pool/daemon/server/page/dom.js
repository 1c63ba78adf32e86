// Elements: made once, then changed only where they differ, so that focus and screen readers stay where they are.

export const byId = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Has a list's items follow the keys, in their order; `make` makes what is new. */
export function follow(list, keys, made, makeItem) {
  const wanted = new Set(keys);
  for (const [key, item] of made) {
    if (!wanted.has(key)) {
      item.element.remove();
      made.delete(key);
    }
  }
  const focused = document.activeElement;
  let next = list.firstElementChild;
  for (const key of keys) {
    if (!made.has(key)) made.set(key, makeItem(key));
    const { element } = made.get(key);
    if (element === next) next = next.nextElementSibling;
    else list.insertBefore(element, next);
  }
  if (focused !== document.activeElement && list.contains(focused)) focused.focus({ preventScroll: true });
}
