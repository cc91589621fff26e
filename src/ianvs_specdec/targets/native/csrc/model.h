// A decoder-only transformer, and a step of it for many sequences at once.
#pragma once

#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.h"
#include "plan.h"
#include "products.h"
#include "specdec.h"

namespace SPECDEC_VARIANT {

// Memory that is reused from step to step and only grows; its content is lost.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  bool reserve(int64_t count) {
    const auto bytes = static_cast<std::size_t>((count * sizeof(T) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (bytes <= bytes_) return true;
    void *data = std::aligned_alloc(ALIGNMENT, bytes);
    if (!data) return false;
    std::free(data_);
    data_ = static_cast<T *>(data);
    bytes_ = bytes;
    return true;
  }
  T *operator()() const { return data_; }

 private:
  T *data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Intermediate results of a step.
struct Workspace {
  Buffer<float> x;         // [rows, hidden]: the residual stream
  Buffer<float> normed;    // [rows, hidden]
  Buffer<float> qkv;       // [rows, qkv]
  Buffer<float> attended;  // [rows, queries * width]
  Buffer<float> gate_up;   // [rows, 2 * inner]
  Buffer<float> added;     // [rows, hidden]: to be added to the stream
  Buffer<float> routes;    // [rows, experts]: the factor of each expert, 0 where it is not chosen
  Buffer<float> through;   // [rows, hidden]: rows of one expert
  Buffer<char> product;    // see product_scratch
  std::vector<AttentionScratch> attention;  // of every thread
};

// Whether no product of the model is NULL.
bool complete(const specdec_config &config);

struct Model {
  explicit Model(const specdec_config &config);

  int32_t check() const;
  int32_t step(const specdec_step &step);
  const Product *unembed() const { return reinterpret_cast<const Product *>(config.unembed); }

  const specdec_config config;
  const Sizes sizes;
  const std::vector<specdec_layer> layers;
  const std::vector<std::vector<specdec_mlp>> mlps;  // of every layer
  const std::shared_ptr<Pages> shared_pages;
  Pages &pages;
  Workspace workspace;

 private:
  int32_t reserve(int64_t rows, int64_t threads);
  int threads_for(const specdec_step &step, int64_t rows) const;

  Plan plan_;
  std::mutex busy_;
  int64_t weights_ = 0;
};

}  // namespace SPECDEC_VARIANT
