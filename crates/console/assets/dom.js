// Makes elements. Text is always text: nothing here makes markup of it.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element of HTML. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An element of SVG. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Sets the text of an element, if it is another. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Hidden from eyes, not from screen readers. */
export function unseen(text) {
  return h("span", { class: "unseen" }, text);
}

/**
 * Makes `parent` have one child for each item, in order. A child is made anew only if its looks changed, so focus, selection
 * and the reader's place are kept. Each child may have a function `update`, which is called with every new item, for what
 * changes all the time.
 */
export function list(parent, items, key, looks, make) {
  const before = new Map([...parent.children].map((child) => [child.lkKey, child]));
  const kept = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const id = key(item);
    const look = JSON.stringify(looks(item));
    let child = before.get(id);
    before.delete(id);
    if (!child || child.lkLooks !== look) {
      const fresh = make(item, child);
      fresh.lkKey = id;
      fresh.lkLooks = look;
      if (child) {
        const focused = focusedIn(child);
        if (place === child) place = fresh;
        child.replaceWith(fresh);
        if (focused) (fresh.querySelector(focused) ?? document.getElementById("main")).focus({ preventScroll: true });
      }
      child = fresh;
    }
    kept.add(child);
    child.update?.(item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of [...parent.children]) {
    if (kept.has(child)) continue;
    // Whoever was there goes on from the page, not from its beginning.
    if (child.contains(document.activeElement)) document.getElementById("main").focus({ preventScroll: true });
    child.remove();
  }
}

/** What finds the focused element again in a child that is made anew. */
function focusedIn(element) {
  const focused = document.activeElement;
  if (!focused || !element.contains(focused)) return null;
  return focused.dataset.focus ? `[data-focus="${CSS.escape(focused.dataset.focus)}"]` : focused.localName;
}

/** Buttons of which one is pressed. */
export function choice(label, options, chosen, choose) {
  return h("div", { class: "choice", role: "group", "aria-label": label },
    options.map(([value, text]) =>
      h("button", { type: "button", "aria-pressed": String(value === chosen), "data-focus": value, on: { click: () => choose(value) } }, text)));
}
