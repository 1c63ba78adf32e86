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
  for (const [key, item] of made) {
    if (!keys.includes(key)) {
      item.element.remove();
      made.delete(key);
    }
  }
  keys.forEach((key, place) => {
    if (!made.has(key)) made.set(key, makeItem(key));
    const { element } = made.get(key);
    if (list.children[place] !== element) list.insertBefore(element, list.children[place] ?? null);
  });
}
