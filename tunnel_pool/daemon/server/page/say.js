// What the page says of what was asked for, and the questions that it asks first.

import { byId, setText } from "./dom.js";

export function say(text) {
  setText(byId("message"), text);
}

/** Does it, and says why when it can't be done. */
export async function act(work) {
  say(""); // so that the same words are news again
  try {
    await work();
  } catch (error) {
    say(error.message);
  }
}

/** Opens a dialog, whose first button changes nothing; returns the value of the button that closed it. */
export async function answer(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  return dialog.returnValue;
}
