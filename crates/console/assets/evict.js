// Takes a lock back from its holder: with a reason, and after saying what that means.

import { h, say } from "./dom.js";
import { post } from "./stream.js";
import { length, plain, who } from "./text.js";

const MEANS = {
  soon: (holder) => [
    `The holder's next renewal is refused, within ${length(holder.lease_ms / 3)}. It learns that it lost the lock and why, and the lock passes when it leaves, at the latest in ${length(holder.left_ms ?? holder.lease_ms)}.`,
    "This is safe with and without fencing: nobody else holds the lock before the holder has stopped.",
  ],
  now: () => [
    "The lock passes at once. The holder is not asked and may still work, for up to a third of its lease, while the next one works too.",
    "With fencing this is safe: whatever the old holder still writes is rejected, because its token is smaller. Without fencing, both may write, and data may be damaged.",
  ],
};

export function evictDialog(name, holder) {
  const reason = h("textarea", { id: "reason", rows: 2, required: true, maxlength: 1000, placeholder: "Why, for the record and for the holder" });
  const sure = h("input", { type: "checkbox", id: "sure", required: true });
  const sureText = h("span", {});
  const means = h("div", { class: "means", "aria-live": "polite" });
  const failed = h("p", { class: "wrong", role: "alert", hidden: true });
  const go = h("button", { type: "submit", class: "danger" }, "Evict");
  const how = (value, title, checked) => h("label", { class: "radio" },
    h("input", { type: "radio", name: "how", value, checked, on: { change: () => explain() } }), title);
  const form = h("form", { method: "dialog", on: { submit: (event) => { event.preventDefault(); send(); } } },
    h("h2", { id: "evict-title" }, "Evict the holder?"),
    h("p", { class: "subject" }, h("code", {}, plain(name)), h("br", {}), `held by ${plain(who(holder))}`),
    h("fieldset", {}, h("legend", {}, "How"),
      how("soon", "Let it finish: refuse its renewals", true),
      how("now", "At once", false)),
    means,
    h("label", { for: "reason" }, "Reason"), reason,
    h("label", { class: "check", for: "sure" }, sure, sureText),
    failed,
    h("div", { class: "buttons" },
      h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"), go));
  const dialog = h("dialog", { "aria-labelledby": "evict-title", class: "evict-dialog" }, form);

  const chosen = () => form.querySelector("input[name=how]:checked").value;
  function explain() {
    means.replaceChildren(...MEANS[chosen()](holder).map((text) => h("p", {}, text)));
    say(sureText, chosen() === "now"
      ? "I know that the resource checks tokens, or that the holder is gone."
      : "I know that the holder loses this lock.");
    sure.checked = false;
    go.classList.toggle("hard", chosen() === "now");
  }

  async function send() {
    go.disabled = true;
    failed.hidden = true;
    try {
      const done = await post("/v1/evict", { name, token: holder.token, now: chosen() === "now", reason: reason.value.trim() });
      if (!done.evicted.some((one) => one.done)) throw new Error("It does not hold the lock any more. Nothing was done.");
      dialog.close();
    } catch (error) {
      say(failed, [error.message, error.whatToDo].filter(Boolean).join(" — "));
      failed.hidden = false;
      go.disabled = false;
    }
  }

  const before = document.activeElement;
  dialog.addEventListener("close", () => { dialog.remove(); before?.focus?.(); });
  document.body.append(dialog);
  explain();
  dialog.showModal();
  reason.focus();
}
