// Keys and values of sequences, in pages of PAGE positions of all layers. A sequence that grows takes another page and
// copies nothing; the pages of a freed one are used again.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "vectors.h"

namespace SPECDEC_VARIANT {

// Positions per page: a multiple of every vector's lanes; larger pages would waste memory on short sequences.
constexpr int PAGE = 64;
constexpr std::size_t ALIGNMENT = 64;

// One page has for each layer and key head the keys [width, PAGE], so that scores of neighbouring positions are one
// vector, and behind them the values [PAGE, padded].
struct PageShape {
  int64_t layers, heads, width, padded;

  PageShape(int64_t layers, int64_t heads, int64_t width)
      : layers(layers), heads(heads), width(width), padded((width + LANES - 1) / LANES * LANES) {}

  int64_t floats() const { return layers * heads * (width + padded) * PAGE; }
  int64_t keys(int64_t layer, int64_t head) const { return (layer * heads + head) * (width + padded) * PAGE; }
  int64_t values(int64_t layer, int64_t head) const { return keys(layer, head) + width * PAGE; }
};

// All pages of a model, freed with the model or its last sequence, whichever comes last.
class Pages : public std::enable_shared_from_this<Pages> {
 public:
  explicit Pages(const PageShape &shape) : shape(shape) {}
  ~Pages();
  Pages(const Pages &) = delete;
  Pages &operator=(const Pages &) = delete;

  float *take();  // nullptr: out of memory
  void give_back(float *page);
  int64_t bytes() const;

  const PageShape shape;

 private:
  mutable std::mutex mutex_;
  std::vector<float *> all_, free_;
};

class Sequence {
 public:
  explicit Sequence(Pages &pages) : pages_(pages.shared_from_this()) {}
  ~Sequence();
  Sequence(const Sequence &) = delete;
  Sequence &operator=(const Sequence &) = delete;

  // Reserve pages for `positions`; false, without a change, if memory is short.
  bool reserve(int64_t positions);
  float *page(int64_t position) const { return table_[position / PAGE]; }
  void write(int64_t position, int64_t layer, int64_t head, const float *key, const float *value);
  bool commit(const int32_t *path, int64_t nodes);
  void restore(int64_t to);

  int64_t length = 0;
  // Of the drafted rows, stored after `length` in order: the parent of each, and its depth, 0 for children of the last
  // committed position.
  std::vector<int32_t> parents, depths;

 private:
  void move(int64_t from, int64_t to);

  const std::shared_ptr<Pages> pages_;
  std::vector<float *> table_;
};

}  // namespace SPECDEC_VARIANT
