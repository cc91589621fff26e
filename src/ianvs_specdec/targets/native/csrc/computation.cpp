#include "computation.h"

#include <algorithm>

#include "attention.h"
#include "pool.h"
#include "rows.h"

namespace SPECDEC_VARIANT {

namespace {

// Every thread calls `run`. A thread's share of a phase is rows, columns of a product or units of attention; where the
// next phase reads what others wrote, all wait for each other.
class Computation {
 public:
  Computation(Model &model, const specdec_step &step, const Plan &plan, int threads)
      : model_(model),
        sizes_(model.sizes),
        work_(model.workspace),
        step_(step),
        plan_(plan),
        threads_(threads),
        barrier_(threads) {}

  static void run(void *computation, int thread) { static_cast<Computation *>(computation)->run(thread); }

 private:
  void run(int thread) {
    enter(thread);
    for (int64_t index = 0; index < sizes_.layers; index++) {
      const specdec_layer &layer = model_.layers[index];
      const bool last = index + 1 == sizes_.layers;
      keep(index, thread);
      const float *input = normed(layer.input_norm, rows(), thread);
      product(layer.qkv, input, sizes_.hidden, rows(), work_.qkv(), false, thread);
      rotate_and_write(layer, index, thread);
      attend_all(last ? plan_.ends : plan_.all, index, thread);
      if (last && plan_.ends.rows.empty()) return;
      if (last) gather(thread);
      finish(layer, model_.mlps[index], last ? ends() : rows(), thread);
    }
    leave(thread);
  }

  int64_t rows() const { return static_cast<int64_t>(plan_.rows.size()); }
  int64_t ends() const { return static_cast<int64_t>(plan_.ends.rows.size()); }

  void sync() {
    if (threads_ > 1) barrier_.wait();
  }

  template <class Work>
  void each(int64_t count, int thread, Work work) {
    const Range mine = range_of(count, thread, threads_);
    for (int64_t i = mine.begin; i < mine.end; i++) work(i);
  }

  void product(const specdec_product *which, const float *x, int64_t ldx, int64_t count, float *y, bool add, int thread) {
    const auto *inner = reinterpret_cast<const Product *>(which);
    product_prepare(inner, x, ldx, count, work_.product(), thread, threads_);
    sync();
    product_run(inner, work_.product(), count, y, product_out(inner), add, thread, threads_);
    sync();
  }

  // The first layer's input.
  void enter(int thread) {
    const int64_t hidden = sizes_.hidden;
    each(rows(), thread, [&](int64_t row) {
      float *x = work_.x() + row * hidden;
      if (step_.tokens) {
        look_up(model_.config.embedding, model_.config.embedding_kind, step_.tokens[row], hidden, x);
      } else {
        std::memcpy(x, step_.input + row * hidden, hidden * sizeof(float));
      }
      scale(x, model_.config.embedding_scale, hidden);
    });
    sync();
  }

  // Copies rows of `from` to row `place(row)` of the output of hidden state `feature`, if it was requested.
  template <class Place>
  void hand_out(int64_t feature, const float *from, int64_t count, int thread, Place place) {
    for (int32_t i = 0; i < step_.features; i++) {
      if (step_.feature[i] != feature) continue;
      each(count, thread, [&](int64_t row) {
        std::memcpy(step_.hidden[i] + place(row) * sizes_.hidden, from + row * sizes_.hidden,
                    sizes_.hidden * sizeof(float));
      });
    }
  }

  void keep(int64_t layer, int thread) {
    hand_out(layer, work_.x(), rows(), thread, [](int64_t row) { return row; });
  }

  // The residual stream after the norm, if there is one.
  const float *normed(const float *weight, int64_t count, int thread) {
    if (!weight) return work_.x();
    each(count, thread, [&](int64_t row) {
      const int64_t at = row * sizes_.hidden;
      norm(work_.x() + at, weight, model_.config.epsilon, sizes_.hidden, work_.normed() + at);
    });
    sync();
    return work_.normed();
  }

  // The norm of each head, or of all heads together.
  void norm_heads(const float *weight, int64_t heads, float *x) {
    if (!weight) return;
    const int64_t count = model_.config.whole_norms ? heads * sizes_.width : sizes_.width;
    for (float *end = x + heads * sizes_.width; x < end; x += count) norm(x, weight, model_.config.epsilon, count, x);
  }

  void rotate_and_write(const specdec_layer &layer, int64_t index, int thread) {
    const int64_t width = sizes_.width, rotary = sizes_.rotary, queries = sizes_.queries, keys = sizes_.keys;
    const specdec_config &config = model_.config;
    each(rows(), thread, [&](int64_t r) {
      const Row &row = plan_.rows[r];
      float *qkv = work_.qkv() + r * sizes_.qkv();
      if (index == 0 && step_.qkv_addition) {
        const float *more = step_.qkv_addition + r * sizes_.qkv();
        for (int64_t i = 0; i < sizes_.qkv(); i++) qkv[i] += more[i];
      }
      norm_heads(layer.query_norm, queries, qkv);
      norm_heads(layer.key_norm, keys, qkv + queries * width);
      const int64_t rotated = layer.rotation < 0 ? 0 : rotary;
      const int64_t angles = ((row.rotation + layer.rotation) * step_.positions + row.position) * (rotary / 2);
      for (int64_t head = 0; head < queries + keys; head++) {
        const float factor = head < queries ? config.attention_scale : 1.0f;
        float *at = qkv + head * width;
        if (rotated) rotate(at, step_.cosine + angles, step_.sine + angles, factor, rotated / 2);
        scale(at + rotated, factor, width - rotated);
      }
      for (int64_t head = 0; head < keys; head++) {
        const float *key = qkv + (queries + head) * width;
        row.sequence->write(row.slot, index, head, key, key + keys * width);
      }
    });
    sync();
  }

  void attend_all(const Chosen &chosen, int64_t layer, int thread) {
    const int64_t width = sizes_.width, group = sizes_.group(), window = model_.layers[layer].window;
    // Round-robin, since the last rows of a prompt attend to the most positions.
    for (std::size_t u = thread; u < chosen.units.size(); u += threads_) {
      const Unit &unit = chosen.units[u];
      Query queries[QUERIES];
      int64_t slots = 0;
      for (int64_t m = 0; m < unit.count; m++) {
        const int64_t at = unit.begin + (unit.first + m) / group, head = unit.head * group + (unit.first + m) % group;
        const int64_t index = chosen.rows[at];
        const Row &row = plan_.rows[index];
        queries[m] = {work_.qkv() + index * sizes_.qkv() + head * width,
                      work_.attended() + (at * sizes_.queries + head) * width,
                      window ? std::max<int64_t>(row.position + 1 - window, 0) : 0,
                      row.common,
                      plan_.paths.data() + row.path, row.depth};
        slots = std::max(slots, row.slot + 1);
      }
      const Sequence &sequence = *plan_.rows[chosen.rows[unit.begin]].sequence;
      attend(sequence, model_.pages.shape, layer, unit.head, queries, static_cast<int>(unit.count), slots,
             model_.config.attention_cap, work_.attention[thread]);
    }
    sync();
  }

  // Keep only the rows of the residual stream that are needed after the last layer.
  void gather(int thread) {
    if (ends() == rows()) return;
    if (thread == 0) {
      for (int64_t i = 0; i < ends(); i++) {
        std::memmove(work_.x() + i * sizes_.hidden, work_.x() + plan_.ends.rows[i] * sizes_.hidden,
                     sizes_.hidden * sizeof(float));
      }
    }
    sync();
  }

  // The layer after its attention.
  void finish(const specdec_layer &layer, const std::vector<specdec_mlp> &mlps, int64_t count, int thread) {
    const int64_t attended = sizes_.queries * sizes_.width;
    product_to_stream(layer.output, work_.attended(), attended, layer.output_norm, count, thread);
    const float *input = normed(layer.mlp_norm, count, thread);
    if (layer.router) {
      mix(layer, mlps, input, count, thread);
      add_to_stream(layer.down_norm, count, thread);
    } else {
      const int64_t inner = gate(mlps[0], input, count, thread);
      product_to_stream(mlps[0].down, work_.gate_up(), 2 * inner, layer.down_norm, count, thread);
    }
  }

  void product_to_stream(const specdec_product *which, const float *x, int64_t ldx, const float *weight, int64_t count,
                         int thread) {
    const bool directly = !weight && model_.config.residual_scale == 1.0f;
    product(which, x, ldx, count, directly ? work_.x() : work_.added(), directly, thread);
    if (!directly) add_to_stream(weight, count, thread);
  }

  // Adds `added` to the stream, after a norm if there is one.
  void add_to_stream(const float *weight, int64_t count, int thread) {
    const int64_t hidden = sizes_.hidden;
    each(count, thread, [&](int64_t row) {
      float *added = work_.added() + row * hidden;
      if (weight) norm(added, weight, model_.config.epsilon, hidden, added);
      add_scaled(added, model_.config.residual_scale, hidden, work_.x() + row * hidden);
    });
    sync();
  }

  // active(gate) * up in the first half of every row of `gate_up`; returns its width.
  int64_t gate(const specdec_mlp &mlp, const float *input, int64_t count, int thread) {
    const int64_t inner = product_in(reinterpret_cast<const Product *>(mlp.down));
    product(mlp.gate_up, input, sizes_.hidden, count, work_.gate_up(), false, thread);
    each(count, thread,
         [&](int64_t row) { activate(work_.gate_up() + row * 2 * inner, inner, model_.config.gate); });
    sync();
    return inner;
  }

  // A mixture of experts (Shazeer et al. 2017, arXiv 1701.06538) in `added`, summed in the order of the experts.
  void mix(const specdec_layer &layer, const std::vector<specdec_mlp> &mlps, const float *input, int64_t count,
           int thread) {
    const int64_t hidden = sizes_.hidden, experts = model_.config.experts;
    product(layer.router, input, hidden, count, work_.routes(), false, thread);
    each(count, thread, [&](int64_t row) {
      choose_experts(work_.routes() + row * experts, experts, model_.config.chosen, model_.config.normalize_chosen);
      std::fill_n(work_.added() + row * hidden, hidden, 0.0f);
    });
    sync();
    for (int64_t expert = 0; expert < experts; expert++) {
      // Calls `work` with this thread's rows of the expert, and which of its rows each is; returns how many it has.
      const auto own = [&](auto work) {
        int64_t found = 0;
        for (int64_t row = 0; row < count; row++) {
          const float factor = work_.routes()[row * experts + expert];
          if (factor == 0.0f) continue;
          if (found % threads_ == thread) work(row, work_.through() + found * hidden, factor);
          found++;
        }
        return found;
      };
      const int64_t found = own([&](int64_t row, float *through, float) {
        std::memcpy(through, input + row * hidden, hidden * sizeof(float));
      });
      if (found == 0) continue;
      sync();
      const int64_t inner = gate(mlps[expert], work_.through(), found, thread);
      product(mlps[expert].down, work_.gate_up(), 2 * inner, found, work_.through(), false, thread);
      own([&](int64_t row, const float *through, float factor) {
        add_scaled(through, factor, hidden, work_.added() + row * hidden);
      });
      sync();
    }
  }

  // Hidden states after the last layer, and logits.
  void leave(int thread) {
    const auto place = [&](int64_t row) { return plan_.ends.rows[row]; };
    hand_out(sizes_.layers + 1, work_.x(), ends(), thread, place);
    const float *end = normed(model_.config.final_norm, ends(), thread);
    hand_out(sizes_.layers, end, ends(), thread, place);
    const auto wanted = static_cast<int64_t>(plan_.with_logits.size());
    if (wanted == 0) return;
    if (wanted != ends()) {
      // The normed rows have been copied, but other threads may still be reading them.
      float *chosen = work_.gate_up();
      each(wanted, thread, [&](int64_t i) {
        std::memcpy(chosen + i * sizes_.hidden, end + plan_.with_logits[i] * sizes_.hidden,
                    sizes_.hidden * sizeof(float));
      });
      sync();
      end = chosen;
    }
    product(model_.config.unembed, end, sizes_.hidden, wanted, step_.logits, false, thread);
    const int64_t vocabulary = product_out(model_.unembed());
    const Range mine = range_of(vocabulary, thread, threads_);
    for (int64_t row = 0; row < wanted; row++) {
      float *logits = step_.logits + row * vocabulary + mine.begin;
      scale(logits, model_.config.logits_scale, mine.end - mine.begin);
      cap(logits, model_.config.logits_cap, mine.end - mine.begin);
    }
  }

  Model &model_;
  const Sizes sizes_;
  Workspace &work_;
  const specdec_step &step_;
  const Plan &plan_;
  const int threads_;
  Barrier barrier_;
};

}  // namespace

void compute(Model &model, const specdec_step &step, const Plan &plan, int threads) {
  Computation together(model, step, plan, threads);
  if (threads > 1 && run_together(threads, Computation::run, &together)) return;
  Computation alone(model, step, plan, 1);
  Computation::run(&alone, 0);
}

}  // namespace SPECDEC_VARIANT
