// Memory for packed weights, in huge pages if available. A step reads every weight once; with pages of 4 KB that
// takes a page walk for every 64 cache lines.
//
// Small weights share chunks of the size of a huge page, others have separate chunks. A chunk begins with its header.
#pragma once

#include <cstdint>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace SPECDEC_VARIANT {
namespace {

constexpr int64_t kHugePage = 2 << 20;

struct alignas(64) Chunk {
    int64_t size, used, blocks;
};

struct Arena {
    Chunk* open = nullptr;  // has room for further blocks
    char locked = 0;

    void lock() {
        while (__atomic_test_and_set(&locked, __ATOMIC_ACQUIRE)) {
        }
    }
    void unlock() { __atomic_clear(&locked, __ATOMIC_RELEASE); }
};

Arena arena;

inline Chunk* chunk_new(int64_t bytes) {
    const int64_t size = (bytes + (int64_t)sizeof(Chunk) + kHugePage - 1) / kHugePage * kHugePage;
    Chunk* chunk = (Chunk*)aligned_alloc(kHugePage, size);
    if (!chunk) return nullptr;
#if defined(MADV_HUGEPAGE)
    // The last huge page of a chunk with one block would be mostly empty.
    const int64_t full = (bytes + (int64_t)sizeof(Chunk)) / kHugePage * kHugePage;
    madvise(chunk, full > 0 ? full : kHugePage, MADV_HUGEPAGE);
#endif
    *chunk = Chunk{size, sizeof(Chunk), 0};
    return chunk;
}

// A block aligned to 64 bytes; nullptr: out of memory.
inline void* block_new(int64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    arena.lock();
    Chunk* chunk = arena.open;
    const bool shared = bytes < kHugePage / 2;
    if (!shared || !chunk || chunk->used + bytes > chunk->size) {
        chunk = chunk_new(bytes);
        if (chunk && shared) arena.open = chunk;
    }
    void* block = nullptr;
    if (chunk) {
        block = (char*)chunk + chunk->used;
        chunk->used += bytes;
        chunk->blocks++;
    }
    arena.unlock();
    return block;
}

inline void block_free(void* block) {
    if (!block) return;
    Chunk* chunk = (Chunk*)((uintptr_t)block / kHugePage * kHugePage);  // a block begins in its chunk's first huge page
    arena.lock();
    if (--chunk->blocks == 0) {
        if (chunk == arena.open) arena.open = nullptr;
        free(chunk);
    }
    arena.unlock();
}

}  // namespace
}  // namespace SPECDEC_VARIANT
