#include "memory.h"

#include <cstdlib>
#include <new>

namespace SPECDEC_VARIANT {

Pages::~Pages() {
  for (float *page : all_) std::free(page);
}

float *Pages::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!free_.empty()) {
    float *page = free_.back();
    free_.pop_back();
    return page;
  }
  // Reserve both lists first, so that nothing can fail after the page is allocated or when it is returned.
  all_.reserve(all_.size() + 1);
  free_.reserve(all_.capacity());
  auto *page = static_cast<float *>(std::aligned_alloc(ALIGNMENT, shape.floats() * sizeof(float)));
  if (page) all_.push_back(page);
  return page;
}

void Pages::give_back(float *page) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(page);
}

int64_t Pages::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(all_.size() * shape.floats() * sizeof(float));
}

Sequence::~Sequence() {
  for (float *page : table_) pages_->give_back(page);
}

bool Sequence::reserve(int64_t positions) {
  const std::size_t needed = (positions + PAGE - 1) / PAGE, had = table_.size();
  table_.reserve(needed);
  while (table_.size() < needed) {
    float *page = pages_->take();
    if (!page) {
      while (table_.size() > had) {
        pages_->give_back(table_.back());
        table_.pop_back();
      }
      return false;
    }
    table_.push_back(page);
  }
  return true;
}

void Sequence::write(int64_t position, int64_t layer, int64_t head, const float *key, const float *value) {
  const PageShape &shape = pages_->shape;
  const int64_t at = position % PAGE;
  float *keys = page(position) + shape.keys(layer, head) + at;
  for (int64_t i = 0; i < shape.width; i++) keys[i * PAGE] = key[i];
  std::memcpy(page(position) + shape.values(layer, head) + at * shape.padded, value, shape.width * sizeof(float));
}

void Sequence::move(int64_t from, int64_t to) {
  const PageShape &shape = pages_->shape;
  for (int64_t layer = 0; layer < shape.layers; layer++) {
    for (int64_t head = 0; head < shape.heads; head++) {
      const float *key = page(from) + shape.keys(layer, head) + from % PAGE;
      float *moved = page(to) + shape.keys(layer, head) + to % PAGE;
      for (int64_t i = 0; i < shape.width; i++) moved[i * PAGE] = key[i * PAGE];
      const float *value = page(from) + shape.values(layer, head) + from % PAGE * shape.padded;
      std::memcpy(page(to) + shape.values(layer, head) + to % PAGE * shape.padded, value, shape.width * sizeof(float));
    }
  }
}

bool Sequence::commit(const int32_t *path, int64_t nodes) {
  for (int64_t i = 0; i < nodes; i++) {
    const int32_t before = i == 0 ? -1 : path[i - 1];
    if (path[i] < 0 || path[i] >= static_cast<int64_t>(parents.size()) || parents[path[i]] != before) return false;
  }
  // A row is stored after its parent, so no row is overwritten before it has moved.
  for (int64_t i = 0; i < nodes; i++) {
    if (path[i] != i) move(length + path[i], length + i);
  }
  restore(length + nodes);
  return true;
}

void Sequence::restore(int64_t to) {
  length = to;
  parents.clear();
  depths.clear();
}

}  // namespace SPECDEC_VARIANT
