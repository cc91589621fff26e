#include "products.h"

#include <cstdlib>

#include "products_float.h"
#include "products_int.h"
#include "products_layout.h"
#include "products_rounding.h"


namespace SPECDEC_VARIANT {
namespace {

int64_t strip_bytes_of(Kind kind, int64_t depth) {
    switch (kind) {
        case Kind::f32: return depth * kStrip * 4;
        case Kind::bf16:
        case Kind::f16: return depth * kStrip * 2;
        case Kind::int8: return depth / kGroup * (AsInt8::kBytes + kScaleBytes);
        case Kind::int4: return depth / kGroup * (AsInt4::kBytes + kScaleBytes);
    }
    return 0;
}

// Row `row` of a weight in float32.
void widen_row(Kind source, const void* weight, int64_t row, int64_t in, float* to) {
    if (source == Kind::f32) {
        memcpy(to, (const float*)weight + row * in, in * 4);
        return;
    }
    const uint16_t* from = (const uint16_t*)weight + row * in;
    for (int64_t k = 0; k < in; k++) to[k] = source == Kind::bf16 ? float_of_bf16(from[k]) : float_of_f16(from[k]);
}

void pack_strip(const Product* p, const float* rows, unsigned char* strip) {
    switch (p->kind) {
        case Kind::f32: return float_pack<AsF32, float>(p, rows, strip, [](float value) { return value; });
        case Kind::bf16: return float_pack<AsBf16, uint16_t>(p, rows, strip, bf16_of);
        case Kind::f16: return float_pack<AsF16, uint16_t>(p, rows, strip, f16_of);
        case Kind::int8: return int_pack<AsInt8>(p, rows, strip);
        case Kind::int4: return int_pack<AsInt4>(p, rows, strip);
    }
}

template <class Element>
Element* new_aligned(int64_t bytes) {
    return (Element*)aligned_alloc(kLine, round_up(bytes, kLine));
}

}  // namespace

Product* product_new(Kind kind, Kind source, const void* weight, int64_t out, int64_t in, const float* bias) {
    Product* p = (Product*)calloc(1, sizeof(Product));
    if (!p) return nullptr;
    p->kind = kind, p->out = out, p->in = in;
    p->depth = round_up(in, kDepthUnit), p->strips = (out + kStrip - 1) / kStrip;
    p->strip_bytes = strip_bytes_of(kind, p->depth);
    const int64_t bias_bytes = p->strips * kStrip * 4;
    p->bytes = p->strips * p->strip_bytes + bias_bytes;
    p->weight = new_aligned<unsigned char>(p->strips * p->strip_bytes);
    p->bias = new_aligned<float>(bias_bytes);
    float* rows = new_aligned<float>(kStrip * p->depth * 4);
    if (!p->weight || !p->bias || !rows) {
        free(rows);
        product_free(p);
        return nullptr;
    }
    memset(p->bias, 0, bias_bytes);
    if (bias) memcpy(p->bias, bias, out * 4);
    for (int64_t strip = 0; strip < p->strips; strip++) {
        memset(rows, 0, kStrip * p->depth * 4);
        for (int64_t row = 0; row < kStrip && strip * kStrip + row < out; row++)
            widen_row(source, weight, strip * kStrip + row, in, rows + row * p->depth);
        pack_strip(p, rows, p->weight + strip * p->strip_bytes);
    }
    free(rows);
    return p;
}

void product_free(Product* p) {
    if (!p) return;
    free(p->weight);
    free(p->bias);
    free(p);
}

int64_t product_bytes(const Product* p) { return p->bytes; }
int64_t product_out(const Product* p) { return p->out; }
int64_t product_in(const Product* p) { return p->in; }

int64_t product_scratch(const Product* p, int64_t rows) {
    return rows * (p->kind == Kind::int8 || p->kind == Kind::int4 ? int_row_bytes(p) : float_row_bytes(p));
}

void product_prepare(const Product* p, const float* x, int64_t ldx, int64_t rows, void* scratch, int thread,
                     int threads) {
    const Share share(rows, thread, threads);
    unsigned char* to = (unsigned char*)scratch;
    switch (p->kind) {
        case Kind::f32:
        case Kind::bf16:
        case Kind::f16: return float_prepare(p, x, ldx, share, to);
        case Kind::int8: return int_prepare<AsInt8>(p, x, ldx, share, to);
        case Kind::int4: return int_prepare<AsInt4>(p, x, ldx, share, to);
    }
}

void product_run(const Product* p, const void* scratch, int64_t rows, float* y, int64_t ldy, bool add, int thread,
                 int threads) {
    const Share strips(p->strips, thread, threads);
    const unsigned char* x = (const unsigned char*)scratch;
    switch (p->kind) {
        case Kind::f32: return float_run<AsF32>(p, x, rows, y, ldy, add, strips);
        case Kind::bf16: return float_run<AsBf16>(p, x, rows, y, ldy, add, strips);
        case Kind::f16: return float_run<AsF16>(p, x, rows, y, ldy, add, strips);
        case Kind::int8: return int_run<AsInt8>(p, x, rows, y, ldy, add, strips);
        case Kind::int4: return int_run<AsInt4>(p, x, rows, y, ldy, add, strips);
    }
}

}  // namespace SPECDEC_VARIANT
