// Bars of the likeliest next tokens, with controls: from logits to chances, in the reader's own browser.
//
// gptbook.display.next_tokens publishes <next-tokens data-rows="...">: prompts, symbols, a row of logits for each
// prompt, and inside of it the bars of the first prompt, which stand where no script runs. A vocabulary too large for
// that comes from gptbook.widgets.next_tokens as <next-tokens data-file="...">: the highest logits, and the others as
// groups of near ones, each with its mean and how many there are.

import { button, choice, element, Fed, share, slider, token } from "./controls.js";

// The same as gptbook.sampling.probabilities: temperature, then top-k, then top-p. Logits fall, and counts say how many
// tokens have each. For each of these, the chance of one token, and how many are kept.
function chances(logits, counts, temperature, k, p) {
  let left = temperature === 0 ? 1 : k; // temperature 0 is a choice of one, never a division
  const kept = counts.map((count) => {
    const taken = Math.min(count, left);
    left -= taken;
    return taken;
  });
  const weights = logits.map((logit) => (logit === logits[0] ? 1 : Math.exp((logit - logits[0]) / temperature)));
  const sum = () => weights.reduce((total, weight, i) => (kept[i] ? total + kept[i] * weight : total), 0);
  let total = sum();
  if (p < 1) {
    let held = 0;
    for (let i = 0; i < kept.length; i++) {
      const chance = weights[i] / total;
      const needed = held < p ? Math.ceil((p - held) / chance) : 0;
      kept[i] = Math.min(kept[i], Math.max(needed, i === 0 ? 1 : 0));
      held += kept[i] * chance;
    }
    total = sum();
  }
  return weights.map((weight, i) => ({ chance: kept[i] ? weight / total : 0, kept: kept[i] }));
}

const EACH = 100; // up to here the slider of top-k counts one by one

function steps(V) {
  const found = [];
  for (let k = 1; k < V; k += k < EACH || V <= EACH ? 1 : 10 ** Math.floor(Math.log10(k))) found.push(k);
  return [...found, V];
}

const READ = { " ": "␣", "\n": "↵", "\t": "⇥" };

class NextTokens extends Fed {
  begin(found) {
    const { prompts, top, V, rows } = found ? this.large(found) : this.small(JSON.parse(this.dataset.rows));
    Object.assign(this, { top, V, rows, steps: steps(V) });
    const last = this.steps.length;
    this.temperature = slider("temperature", 0, 3, 0.05, 1);
    this.k = slider("top-k", 1, last, 1, last);
    this.p = slider("top-p", 0, 1, 0.01, 1);
    const reset = button("Reset", () => {
      this.temperature.input.value = 1;
      this.k.input.value = last;
      this.p.input.value = 1;
      this.show();
    });
    this.prompt = choice("after", prompts, reset);
    this.list = this.querySelector("ol");
    this.about = this.querySelector(".about");
    this.about.setAttribute("role", "status");
    this.prepend(this.prompt.row, this.temperature.row, this.k.row, this.p.row);
    for (const { input } of [this.temperature, this.k, this.p]) input.addEventListener("input", () => this.show());
    this.prompt.input.addEventListener("change", () => this.show());
    this.show();
  }

  small({ prompts, symbols, rows, top }) {
    const read = symbols.map((symbol) => READ[symbol] ?? symbol);
    const ranked = rows.map((row) => {
      const order = row.map((_, id) => id).sort((i, j) => row[j] - row[i] || i - j);
      return { logits: order.map((id) => row[id]), counts: order.map(() => 1), symbols: order.map((id) => read[id]) };
    });
    return { prompts, top, V: symbols.length, rows: ranked };
  }

  large({ about, tensors }) {
    const rows = about.symbols.map((symbols, i) => {
      const [logits, means, counts] = ["logits", "means", "counts"].map((name) => [...tensors[`${name}.${i}`].data]);
      return { symbols, logits: [...logits, ...means], counts: [...logits.map(() => 1), ...counts] };
    });
    return { prompts: about.prompts, top: about.top, V: about.V, rows };
  }

  show() {
    const { logits, counts, symbols } = this.rows[this.prompt.input.value];
    const [t, step, p] = [this.temperature, this.k, this.p].map(({ input }) => Number(input.value));
    const k = this.steps[step - 1];
    this.temperature.tell(t === 0 ? "0, greedy" : t.toFixed(2));
    this.k.tell(k === this.V ? `all ${k.toLocaleString("en")}` : k.toLocaleString("en"));
    this.p.tell(p === 1 ? "1, all" : p.toFixed(2));

    const all = chances(logits, counts, t, k, p);
    const kept = all.reduce((sum, one) => sum + one.kept, 0);
    const entropy = all.reduce((sum, { chance, kept }) => (chance ? sum - kept * chance * Math.log(chance) : sum), 0);
    const many = `${kept.toLocaleString("en")} of ${this.V.toLocaleString("en")}`;
    this.about.textContent = `${many} tokens can come. Entropy: ${entropy.toFixed(2)} nats.`;
    this.list.replaceChildren(
      ...all.slice(0, this.top).map(({ chance }, place) => {
        const words = element("span", { className: "share" }, chance ? share(chance) : "–");
        const item = element("li", {}, ...token(symbols[place]), element("span", { className: "bar" }), words);
        item.style.setProperty("--p", chance);
        item.classList.toggle("out", chance === 0);
        return item;
      }),
    );
  }
}

customElements.define("next-tokens", NextTokens);
