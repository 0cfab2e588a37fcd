// Shared memory that knows who touched each element.
//
// Faults: an index outside the array, an element read that nobody wrote in this block, two threads
// that touch one element, one of them writing, with no __syncthreads between (or, for lanes of one
// warp, no __syncwarp that both took part in), and an element touched to which a copy is on its
// way.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cluster.h"
#include "fault.h"

namespace fastact::emulation {

struct SharedRegion;

// One FASTACT_SHARED in the source, for each instantiation of the function around it.
struct SharedSite {
  const char* name;
  size_t item, count;
  uint32_t block = 0;                          // the epoch of the block that used it last
  SharedRegion* regions[kMostOfCluster] = {};  // of the blocks of a cluster

  constexpr SharedSite(const char* name_, size_t item_, size_t count_)
      : name(name_), item(item_), count(count_) {}
};

SharedRegion& static_shared(SharedSite& site);
SharedRegion& dynamic_shared_region();
void set_dynamic_shared(size_t bytes);
size_t size_of(const SharedRegion& region);

// Checked against the `count` items that the span holds from byte `start` on.
void shared_read(SharedRegion& region, size_t start, size_t item, size_t count, int64_t index,
                 void* to);
void shared_write(SharedRegion& region, size_t start, size_t item, size_t count, int64_t index,
                  const void* from);
// An asynchronous copy: it is a write of this thread, now; but nobody touches the element until the
// thread has waited for it. end_copies and await_copies as launch.cuh has them.
void shared_write_later(SharedRegion& region, size_t start, size_t item, size_t count,
                        int64_t index, const void* from);
void end_copies();
void await_copies(int newest);
[[noreturn]] void shared_fault(const SharedRegion& region, size_t count, int64_t index);

// Stands for a GPU's pointer into shared memory: an array of T from somewhere to its end.
template <class T>
class SharedSpan {
  static_assert(std::is_trivially_copyable_v<T>, "shared memory holds plain data");

 public:
  // An element, to be read or written at once: `auto x = span[i]` would read later, elsewhere.
  class Element {
   public:
    operator T() && { return get(); }
    void operator=(T value) const&& {
      shared_write(*region_, start_, sizeof(T), count_, index_, &value);
    }
    void operator=(Element&& other) const&& { static_cast<const Element&&>(*this) = other.get(); }
    void operator+=(T value) const&& { static_cast<const Element&&>(*this) = T(get() + value); }

   private:
    friend class SharedSpan;
    Element(SharedRegion* region, size_t start, size_t count, int64_t index)
        : region_(region), start_(start), count_(count), index_(index) {}
    Element(const Element&) = delete;
    T get() const {
      T value;
      shared_read(*region_, start_, sizeof(T), count_, index_, &value);
      return value;
    }
    SharedRegion* region_;
    size_t start_, count_;
    int64_t index_;
  };

  SharedSpan(SharedRegion& region, size_t start, size_t count)
      : region_(&region), start_(start), count_(count) {}

  template <class Index>
  Element operator[](Index index) const {
    static_assert(std::is_integral_v<Index>, "an index is an integer");
    return Element(region_, start_, count_, int64_t(index));
  }
  void write_later(int64_t index, T value) const {
    shared_write_later(*region_, start_, sizeof(T), count_, index, &value);
  }
  template <class Index>
  SharedSpan operator+(Index offset) const {
    if (int64_t(offset) < 0 || uint64_t(offset) > count_)
      shared_fault(*region_, count_, int64_t(offset));
    return SharedSpan(*region_, start_ + size_t(offset) * sizeof(T), count_ - size_t(offset));
  }

 private:
  SharedRegion* region_;
  size_t start_, count_;
};

template <class T>
SharedSpan<T> static_shared_span(SharedSite& site) {
  return {static_shared(site), 0, site.count};
}

template <class T>
SharedSpan<T> dynamic_shared_span() {
  static_assert(sizeof(T) % 2 == 0, "dynamic shared memory is watched by granules of two bytes");
  SharedRegion& region = dynamic_shared_region();
  return {region, 0, size_of(region) / sizeof(T)};
}

}  // namespace fastact::emulation
