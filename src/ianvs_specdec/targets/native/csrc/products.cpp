#include "products.h"

#include <cstdlib>

#include "products_amx.h"
#include "products_float.h"
#include "products_memory.h"
#include "products_rounding.h"

namespace SPECDEC_VARIANT {
namespace {

#if defined(__AMX_BF16__)
using Bf16Product = TileProduct;
#elif defined(__AVX512BF16__)
using Bf16Product = FloatProduct<AsBf16Pairs>;
#else
using Bf16Product = FloatProduct<AsBf16>;
#endif

// Calls `use` with the class of this kind.
template <class Use>
auto with(Kind kind, Use use) {
    switch (kind) {
        case Kind::bf16: return use(Bf16Product());
        case Kind::f16: return use(FloatProduct<AsF16>());
        case Kind::int8: return use(IntProduct<AsInt8>());
        case Kind::int4: return use(IntProduct<AsInt4>());
        default: return use(FloatProduct<AsF32>());
    }
}

// Converts a row of a weight to float32, `to` [in].
void widen_row(Kind source, const void* weight, int64_t row, int64_t in, float* to) {
    if (source == Kind::f32) {
        memcpy(to, (const float*)weight + row * in, in * 4);
        return;
    }
    const uint16_t* from = (const uint16_t*)weight + row * in;
    for (int64_t k = 0; k < in; k++) to[k] = source == Kind::bf16 ? float_of_bf16(from[k]) : float_of_f16(from[k]);
}

}  // namespace

Product* product_new(Kind kind, Kind source, const void* weight, int64_t out, int64_t in, const float* bias) {
#if defined(__AMX_BF16__)
    allow_tiles();
#endif
    Product* p = (Product*)calloc(1, sizeof(Product));
    if (!p) return nullptr;
    p->kind = kind, p->out = out, p->in = in;
    p->depth = round_up(in, kDepthUnit), p->strips = (out + kStrip - 1) / kStrip;
    p->strip_bytes = with(kind, [&](auto form) { return form.strip_bytes(p->depth); });
    const int64_t bias_bytes = p->strips * kStrip * 4;
    p->bytes = p->strips * p->strip_bytes + bias_bytes;
    p->weight = (unsigned char*)block_new(p->bytes);
    float* rows = (float*)calloc(kStrip * p->depth, 4);
    if (!p->weight || !rows) {
        free(rows);
        product_free(p);
        return nullptr;
    }
    p->bias = (float*)(p->weight + p->strips * p->strip_bytes);
    memset(p->bias, 0, bias_bytes);
    if (bias) memcpy(p->bias, bias, out * 4);
    for (int64_t strip = 0; strip < p->strips; strip++) {
        for (int64_t row = 0; row < kStrip; row++) {
            if (strip * kStrip + row < out)
                widen_row(source, weight, strip * kStrip + row, in, rows + row * p->depth);
            else
                memset(rows + row * p->depth, 0, p->depth * 4);
        }
        with(kind, [&](auto form) { form.pack(p, rows, p->weight + strip * p->strip_bytes); });
    }
    free(rows);
    return p;
}

void product_free(Product* p) {
    if (!p) return;
    block_free(p->weight);
    free(p);
}

int64_t product_bytes(const Product* p) { return p->bytes; }
int64_t product_out(const Product* p) { return p->out; }
int64_t product_in(const Product* p) { return p->in; }

int64_t product_scratch(const Product* p, int64_t rows) {
    return with(p->kind, [&](auto form) { return form.scratch(p, rows); });
}

void product_prepare(const Product* p, const float* x, int64_t ldx, int64_t rows, void* scratch, int thread,
                     int threads) {
    const Share share(rows, thread, threads);
    with(p->kind, [&](auto form) { form.prepare(p, x, ldx, share, (unsigned char*)scratch); });
}

void product_run(const Product* p, const void* scratch, int64_t rows, float* y, int64_t ldy, bool add, int thread,
                 int threads) {
    const Share strips(p->strips, thread, threads);
    with(p->kind, [&](auto form) { form.run(p, (const unsigned char*)scratch, rows, y, ldy, add, strips); });
}

}  // namespace SPECDEC_VARIANT
