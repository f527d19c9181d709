// Bars of the likeliest next tokens, with controls: from a row of logits to chances, in the reader's own browser.
//
// gptbook.display.next_tokens publishes <next-tokens data-rows="...">: prompts, symbols, a row of logits for each
// prompt, and inside of it the bars of the first prompt, which stand where no script runs. A custom element starts
// wherever it comes into the page, so the theme's way to swap pages needs nothing more.

// The same as gptbook.sampling.probabilities: temperature, then top-k, then top-p. [[chance, id], ...], falling.
function chances(logits, temperature, k, p) {
  let ranked = logits.map((logit, id) => [logit, id]).sort(([a, i], [b, j]) => b - a || i - j);
  const highest = ranked[0][0];
  ranked = ranked.slice(0, temperature === 0 ? 1 : k); // temperature 0 is a choice of one, never a division
  const weights = ranked.map(([logit]) => (logit === highest ? 1 : Math.exp((logit - highest) / temperature)));
  let total = weights.reduce((sum, weight) => sum + weight, 0);
  let held = 0;
  let kept = weights.length;
  if (p < 1)
    for (kept = 0; kept < weights.length && (kept === 0 || held < p); kept++) held += weights[kept] / total;
  total = weights.slice(0, kept).reduce((sum, weight) => sum + weight, 0);
  return logits
    .map((logit, id) => [logit, id])
    .sort(([a, i], [b, j]) => b - a || i - j)
    .map(([, id], place) => [place < kept ? weights[place] / total : 0, id]);
}

const NAMES = { "␣": "blank", "↵": "line end" }; // what software that reads aloud would not say

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

let made = 0; // so that the ids of several elements on a page differ

class NextTokens extends HTMLElement {
  connectedCallback() {
    if (this.list) return; // moved, and not new
    Object.assign(this, JSON.parse(this.dataset.rows));
    const V = this.symbols.length;
    const id = `next-tokens-${made++}`;
    const slider = (name, text, min, max, step, value) => {
      const input = element("input", { type: "range", id: `${id}-${name}`, min, max, step });
      input.value = value; // after its bounds
      const shown = element("span", { className: "value" }); // no <output>, which would be read out twice
      const label = element("label", { htmlFor: input.id }, text);
      return { input, shown, row: element("div", { className: "control" }, label, input, shown) };
    };
    this.prompt = element("select", { id: `${id}-prompt` });
    this.prompt.append(...this.prompts.map((text, i) => element("option", { value: i }, text)));
    this.temperature = slider("temperature", "temperature", 0, 3, 0.05, 1);
    this.k = slider("k", "top-k", 1, V, 1, V);
    this.p = slider("p", "top-p", 0, 1, 0.01, 1);
    const reset = element("button", { type: "button" }, "Reset");
    reset.addEventListener("click", () => {
      this.temperature.input.value = 1;
      this.k.input.value = V;
      this.p.input.value = 1;
      this.show();
    });

    this.list = this.querySelector("ol");
    this.about = this.querySelector(".about");
    this.about.setAttribute("role", "status");
    const label = element("label", { htmlFor: this.prompt.id }, "after");
    this.prepend(
      element("div", { className: "control" }, label, this.prompt, reset),
      this.temperature.row,
      this.k.row,
      this.p.row,
    );
    for (const input of [this.temperature.input, this.k.input, this.p.input])
      input.addEventListener("input", () => this.show());
    this.prompt.addEventListener("change", () => this.show());
    this.show();
  }

  show() {
    const V = this.symbols.length;
    const [t, k, p] = [this.temperature, this.k, this.p].map(({ input }) => Number(input.value));
    const tell = (control, text) => {
      control.shown.textContent = text;
      control.input.setAttribute("aria-valuetext", text);
    };
    tell(this.temperature, t === 0 ? "0, greedy" : t.toFixed(2));
    tell(this.k, k === V ? `all ${V}` : String(k));
    tell(this.p, p === 1 ? "1, all" : p.toFixed(2));

    const all = chances(this.rows[this.prompt.value], t, k, p);
    const kept = all.filter(([chance], place) => chance > 0 || place === 0);
    const entropy = kept.reduce((sum, [chance]) => sum - (chance > 0 ? chance * Math.log(chance) : 0), 0);
    this.about.textContent = `${kept.length} of ${V} tokens can come. Entropy: ${entropy.toFixed(2)} nats.`;
    this.list.replaceChildren(
      ...all.slice(0, this.top).map(([chance, id]) => {
        const symbol = this.symbols[id];
        const shown = { " ": "␣", "\n": "↵" }[symbol] ?? symbol;
        const sign = element("code", {}, shown);
        const children = [sign];
        if (shown in NAMES) {
          sign.setAttribute("aria-hidden", "true");
          children.push(element("span", { className: "unseen" }, NAMES[shown]));
        }
        const percent = chance >= 0.0005 ? `${(100 * chance).toFixed(1)} %` : chance > 0 ? "< 0.1 %" : "–";
        const share = element("span", { className: "share" }, percent);
        const item = element("li", {}, ...children, element("span", { className: "bar" }), share);
        item.style.setProperty("--p", chance);
        item.classList.toggle("out", chance === 0);
        return item;
      }),
    );
  }
}

customElements.define("next-tokens", NextTokens);
