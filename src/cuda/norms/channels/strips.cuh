// Strips: how the kernels of norms with channels read arrays, and add up over them.
//
// A channel here is `length` elements that share their coefficients: a channel of the whole batch,
// or a channel of one example. A coefficient index counts channels, example by example. A block has
// a tile of channels and a chunk of each. A thread has one unit of the tile, and every ty-th vector
// of it. There are three ways:
//
//   kLines     channels first: a unit is one channel, whose segments are whole vectors
//   kColumns   channels last: a unit is as many channels as a vector has lanes
//   kSingles   all other arrays: a unit is one channel, and a vector is gathered, element by
//              element. Such arrays have segments or channels last that are no whole vectors,
//              doubles, any strides, or more elements than 32 bits count. The elements of a warp
//              are neighbours, so that the loads of a gather coalesce
//
// The way, the tile, the chunk and the vectors of a thread follow from the shape and the order of
// the axes in memory alone, and so does the order of every sum. Vectors at addresses that are no
// multiple of 16 bytes are read and written by elements.
//
// Threads lie along a channel; where elements that are neighbours in memory belong to different
// channels (`across`), they lie along units first. Sums go by shuffles over the lanes of a warp
// that share a unit, and through shared memory from warp to warp.
#pragma once

#include "common/core/axes.h"
#include "cuda/core/held_rows.cuh"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kStripThreads = 256;
constexpr int kWholeThreads = 512;     // of a channel that a block holds, at most; of double half
constexpr int kTileChannels = 256;     // channels of a tile, at most
constexpr int64_t kLineChunks = 32;    // of a channel of lines, at most, where channels are many;
constexpr int64_t kLineBlocks = 2048;  // of all channels together, where they are few
constexpr int64_t kOwnParts = 8192;    // pairs of groups that a block merges for itself, at most
constexpr int kColumnUnits = 16;       // of a tile of columns
constexpr int64_t kLineRounds = 6;     // of a chunk, at most, where all chunks are resident
constexpr int64_t kNarrowRounds = 4;   // of a chunk of columns, at most, where tiles are narrow
// Blocks that are resident on a large device at once.
constexpr int64_t kLinesAtOnce = 132 * 3;
template <class T>
constexpr int64_t kColumnsAtOnce = 132 * (sizeof(T) > 2 ? 3 : 2);
// Rounds of a chunk of one of several examples, at least: making coefficients costs as much as two.
template <class T>
constexpr int64_t kExampleRounds = sizeof(T) > 2 ? 5 : 4;

enum Way { kLines, kColumns, kSingles };
enum StripRole { kStripX, kStripDy, kStripOut, kStripRoles };

template <class T, Way way>
constexpr int kThreadsOfWhole = way == kLines && sizeof(T) < 8      ? 416
                                : way == kColumns || sizeof(T) == 8 ? kStripThreads
                                                                    : kWholeThreads;
// Vectors of a thread that are in flight; in kernels of whole channels these are all its vectors.
// Gathered vectors of 16 bits are two: 32 single elements would double the code of their kernels.
template <class T>
constexpr int strip_vecs(Way way) {
  return way == kSingles && sizeof(T) == 2 ? 2 : 4;
}
// A vector that a thread holds, by words: 16 bits taken apart into eight numbers would have to
// arrive before the next vector's load is issued. Gathered elements come one by one.
template <class T, Way way>
using Held = std::conditional_t<way == kSingles, Vec<T>, Words>;
template <class T>
FASTACT_DEVICE Wide<T> widen_held(const Vec<T>& held) {
  return widen_vec(held);
}
template <class T>
FASTACT_DEVICE Wide<T> widen_held(const Words& held) {
  return widen_words<T>(held);
}
// Channels of a unit.
template <class T, Way way>
constexpr int kUnitChannels = way == kColumns ? Vec<T>::kSize : 1;

// A block's tile of channels, and how its threads share that.
struct StripBlock {
  int tx, ty, threads;  // units of a tile, threads of a unit, of a block
  int channels;         // of a tile
  int shift;            // a thread's number is cut by 2^shift: tx or, unless `across`, ty
  Divisor by_ty;
  bool across;
  bool is_whole;  // a thread has all its vectors of its channels at once

  void give_threads(int of_unit) {
    ty = of_unit;
    by_ty = {ty, int64_t(1) << 31};
    shift = 0;
    while (1 << shift < (across ? tx : ty)) ++shift;
  }
  // Whether a block has, at once, all elements of the groups whose channels are in its tile.
  bool has_groups(int64_t group) const { return is_whole && (group == 1 || channels % group == 0); }
};
// The place of channels in dense arrays, in elements: a channel's segments of `inner` are `run`
// apart. by_inner divides by `inner`, for lines counted in vectors.
struct StripSegments {
  int64_t inner, run, example;
  Divisor by_inner;
};

struct Strips {
  char* data[kStripRoles];
  bool aligned;      // every vector of every array is a multiple of 16 bytes
  bool accumulates;  // onto the output
  int64_t examples, channels, length;
  int64_t least;        // rounds of a chunk of columns, at least
  int64_t size, count;  // of the chunks of a channel: elements of one, and how many there are
  int64_t tiles;        // of an example
  StripBlock block;
  bool is_dense;
  StripSegments segments;
  Divisor by_tiles, by_count;  // of tasks: a chunk of each channel of a tile

  void give_tasks() {
    count = ceil_div(length, size);
    tiles = ceil_div(channels, block.channels);
    by_tiles = {tiles, tasks()};
    by_count = {count, tasks()};
  }
  int64_t coefs() const { return examples * channels; }
  int64_t tasks() const { return examples * tiles * count; }
};
// "Rows" of the table are coefficients.
struct AnyStrips : Strips {
  RowTable<kStripRoles> table;
};
template <Way way>
using StripsOf = std::conditional_t<way == kSingles, AnyStrips, Strips>;

// The e-th element of a channel that is gathered. base: where the channel begins, in elements; for
// arrays that are not dense, its coefficient index.
template <class T>
FASTACT_DEVICE T* dense_address(const Strips& s, int role, int64_t base, uint32_t e) {
  const uint32_t segment = s.segments.by_inner.quick(e);
  return reinterpret_cast<T*>(s.data[role]) + base + segment * s.segments.run +
         (e - segment * uint32_t(s.segments.by_inner.by));
}
template <class T>
FASTACT_DEVICE T* address_of(const AnyStrips& s, int role, int64_t base, int64_t e) {
  if (s.is_dense) return dense_address<T>(s, role, base, uint32_t(e));
  return reinterpret_cast<T*>(s.data[role] + offset_of(s.table, role, base, e));
}
// Gathers a vector of elements ty apart; a call, for writes, and for reads that need not be quick.
// (Calls take vectors by words: nvcc 13.0 would pass eight numbers of 16 bits in eight registers.)
template <class T>
FASTACT_DEVICE_CALL Words gather(const AnyStrips& s, int role, int64_t base, int64_t e, int valid) {
  Vec<T> vec{};
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j < valid) vec.lane[j] = load(address_of<T>(s, role, base, e + j * s.block.ty));
  return bit_cast<Words>(vec);
}
template <class T>
FASTACT_DEVICE_CALL void scatter(const AnyStrips& s, int64_t base, int64_t e, int valid,
                                 const Words words) {
  const auto vec = bit_cast<Vec<T>>(words);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j < valid) store(address_of<T>(s, kStripOut, base, e + j * s.block.ty), vec.lane[j]);
}

// A block's part.
struct Tile {
  int64_t example, channel, chunk, begin;
  int channels, length;
};

FASTACT_DEVICE Tile tile_of(const Strips& s, int64_t task) {
  Tile tile;
  const int64_t rest = s.by_tiles(task);
  tile.channel = (task - rest * s.tiles) * s.block.channels;
  tile.example = s.by_count(rest);
  tile.chunk = rest - tile.example * s.count;
  tile.begin = tile.chunk * s.size;
  tile.channels = int(smaller(s.block.channels, s.channels - tile.channel));
  tile.length = int(smaller(s.size, s.length - tile.begin));
  return tile;
}

// A vector at any address, element by element, by a call.
template <class T>
FASTACT_DEVICE_CALL Words load_apart(const T* p) {
  return bit_cast<Words>(load_some(p, Vec<T>::kSize));
}
template <class T>
FASTACT_DEVICE_CALL void store_apart(T* p, const Words words) {
  store_some(p, bit_cast<Vec<T>>(words), Vec<T>::kSize);
}

// A thread's vectors in a tile.
template <class T, Way way>
struct Walk {
  static constexpr int kSize = Vec<T>::kSize, kChannels = kUnitChannels<T, way>;
  static constexpr int kVecs = strip_vecs<T>(way), kPairVecs = kVecs / 2;  // of each of two arrays
  const StripsOf<way>& s;
  Tile tile;
  int unit, along;
  bool is_there;
  int rows;      // vectors of a unit that is there, or elements that are gathered
  int mine;      // how many the thread has
  int first;     // the tile's number of the unit's first channel
  int64_t base;  // where its first channel begins (columns: its first vector), in elements; or, of
                 // arrays that are not dense, a coefficient index

  FASTACT_DEVICE Walk(const StripsOf<way>& strips, const Tile& part) : s(strips), tile(part) {
    const int thread = int(threadIdx.x);
    const int low = thread & ((1 << s.block.shift) - 1), high = thread >> s.block.shift;
    unit = s.block.across ? low : high;
    along = s.block.across ? high : low;
    is_there = unit * kChannels < tile.channels;
    first = is_there ? unit * kChannels : 0;
    rows = way == kLines ? tile.length / kSize : tile.length;
    const int64_t channel = tile.channel + first;
    base = tile.example * s.segments.example + channel * s.segments.inner;
    if (way == kSingles && !s.is_dense) base = tile.example * s.channels + channel;
    if (way == kColumns) base += (tile.begin + along) * s.segments.run;
    const int left = rows - along;
    mine = is_there && left > 0 ? int(s.block.by_ty.quick(left + s.block.ty - 1)) : 0;
  }

  // Whether the unit's channels begin at this thread's vectors.
  FASTACT_DEVICE bool begins() const { return along == 0 && is_there; }
  // The coefficient index of the tile's first channel.
  FASTACT_DEVICE int64_t coef() const { return tile.example * s.channels + tile.channel; }
  // The rounds of so many vectors that the thread with most vectors needs.
  FASTACT_DEVICE int rounds(int vecs) const {
    const int each = (way == kSingles ? kSize : 1) * vecs;
    return int(s.block.by_ty.quick((rows + each - 1) / each + s.block.ty - 1));
  }
  // Elements of each channel that the i-th vector has.
  FASTACT_DEVICE int elements(int i) const {
    if (way != kSingles) return i < mine ? (way == kLines ? kSize : 1) : 0;
    const int left = mine - i * kSize;
    return left < 0 ? 0 : left < kSize ? left : kSize;
  }
  FASTACT_DEVICE bool has_all(int from, int vecs) const {
    return (way == kSingles ? (from + vecs) * kSize : from + vecs) <= mine;
  }

  // The i-th vector, unless vectors are gathered.
  FASTACT_DEVICE T* at(int role, int i) const {
    int64_t offset = base;
    if constexpr (way == kColumns) {
      offset += i * (s.block.ty * s.segments.run);
    } else {
      const uint32_t q = uint32_t(tile.begin / kSize) + uint32_t(along + i * s.block.ty);
      const uint32_t segment = s.segments.by_inner.quick(q);
      offset += segment * s.segments.run + (q - segment * uint32_t(s.segments.by_inner.by)) * kSize;
    }
    return reinterpret_cast<T*>(s.data[role]) + offset;
  }
  // The first element of the i-th vector that is gathered.
  FASTACT_DEVICE int64_t element(int i) const {
    return tile.begin + int64_t(i) * kSize * s.block.ty + along;
  }

  // Reads the vectors that begin with number `from`; elements that are not there are 0.
  template <int n>
  FASTACT_DEVICE void read(int role, int from, Held<T, way> (&vecs)[n]) const {
    const auto each = [&](const auto& one) {
#pragma unroll
      for (int u = 0; u < n; ++u) {
        vecs[u] = {};
        if (const int valid = elements(from + u)) one(vecs[u], from + u, valid);
      }
    };
    if constexpr (way == kSingles) {
      if (!s.is_dense)
        return each([&](Vec<T>& vec, int i, int valid) {
          vec = bit_cast<Vec<T>>(gather<T>(s, role, base, element(i), valid));
        });
      const uint32_t begin = uint32_t(element(from));
      each([&](Vec<T>& vec, int i, int valid) {
#pragma unroll
        for (int j = 0; j < kSize; ++j)
          if (j < valid)
            vec.lane[j] = load(
                dense_address<T>(s, role, base, begin + ((i - from) * kSize + j) * s.block.ty));
      });
    } else if (s.aligned) {
      each([&](Words& vec, int i, int) { vec = bit_cast<Words>(load_vec(at(role, i))); });
    } else {
      each([&](Words& vec, int i, int) { vec = bit_cast<Words>(load_some(at(role, i), kSize)); });
    }
  }
  // Reads one vector, which is there; by a call unless it is a vector of 16 bytes.
  FASTACT_DEVICE Vec<T> read_one(int role, int i) const {
    if constexpr (way == kSingles)
      return bit_cast<Vec<T>>(gather<T>(s, role, base, element(i), elements(i)));
    else
      return s.aligned ? load_vec(at(role, i)) : bit_cast<Vec<T>>(load_apart(at(role, i)));
  }

  // Writes a vector that is there. adds: adds it to the output, where the call wants that.
  template <bool adds>
  FASTACT_DEVICE void write(int i, Wide<T> values) const {
    if (adds && s.accumulates) accumulate_onto(read_one(kStripOut, i), values);
    const Vec<T> vec = narrow_vec<T>(values);
    if constexpr (way == kSingles)
      scatter<T>(s, base, element(i), elements(i), bit_cast<Words>(vec));
    else
      put(i, bit_cast<Words>(vec));
  }
  FASTACT_DEVICE void put(int i, const Words& vec) const {
    if (s.aligned)
      store_vec(at(kStripOut, i), bit_cast<Vec<T>>(vec));
    else
      store_apart(at(kStripOut, i), vec);
  }
};

// Calls body(walk) for each task of a block. backwards: from the last one on, whose elements were
// read last and so may still be in the second-level cache.
template <class T, Way way, class Body>
FASTACT_DEVICE void for_each_tile(const StripsOf<way>& s, bool backwards, const Body& body) {
  const int64_t tasks = s.examples * s.tiles * s.count;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x)
    body(Walk<T, way>(s, tile_of(s, backwards ? tasks - 1 - task : task)));
}
// Two numbers for each channel of a tile, in shared memory: [2][kTileChannels].
FASTACT_DEVICE auto tile_pairs() {
  FASTACT_SHARED(double, pairs, 2 * kTileChannels);
  return pairs;
}
// Two sums of each unit's channel from each warp.
template <class T>
FASTACT_DEVICE auto tile_fold_buffer() {
  constexpr int kWarps = kStripThreads / kWarp;
  FASTACT_SHARED(double, sums, 2 * kWarps * kColumnUnits * Vec<T>::kSize);
  return sums;
}

// The sums over lanes that are `least` to `most` / 2 apart, given to all of them. It stays a loop:
// code needs to be short here more than fast.
FASTACT_DEVICE void add_lanes(double (&sum)[2], int most, int least = 1) {
#pragma unroll 1
  for (int step = most / 2; step >= least; step /= 2) {
    sum[0] += __shfl_xor_sync(kAllLanes, sum[0], step, kWarp);
    sum[1] += __shfl_xor_sync(kAllLanes, sum[1], step, kWarp);
  }
}

// Adds up the threads of each unit, into tile_pairs(). Until the next barrier only the thread with
// a channel's number may read the channel's sums. Every thread takes part.
template <class T, Way way>
FASTACT_DEVICE void fold_tile(const Walk<T, way>& walk, const double (&a)[kUnitChannels<T, way>],
                              const double (&b)[kUnitChannels<T, way>]) {
  constexpr int kChannels = kUnitChannels<T, way>;
  const auto sums = tile_fold_buffer<T>();
  const auto pairs = tile_pairs();
  const Strips& s = walk.s;
  const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  // Lanes of a unit are `least` to `most` apart; a unit has its numbers from each of `rows` warps.
  const int least = s.block.across ? s.block.tx : 1,
            most = s.block.across ? kWarp : int(smaller(s.block.ty, kWarp));
  const bool is_warps = !s.block.across && s.block.ty <= kWarp;
  const int rows = is_warps ? 1 : s.block.threads / kWarp, width = s.block.tx * kChannels;
  const bool writes = s.block.across ? lane < s.block.tx : lane % most == 0;
  const int to = 2 * ((is_warps ? 0 : warp * width) + walk.unit * kChannels);
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    double sum[2] = {a[j], b[j]};
    add_lanes(sum, most, least);
    if (writes) sums[to + 2 * j] = sum[0], sums[to + 2 * j + 1] = sum[1];
  }
  __syncthreads();
  if (thread >= walk.tile.channels) return;
  double sum[2] = {sums[2 * thread], sums[2 * thread + 1]};
#pragma unroll 1
  for (int row = 1; row < rows; ++row) {
    sum[0] += double(sums[2 * (row * width + thread)]);
    sum[1] += double(sums[2 * (row * width + thread) + 1]);
  }
  pairs[thread] = sum[0], pairs[kTileChannels + thread] = sum[1];
}

// Four arguments of each channel of a tile, as double: [4][kTileChannels] in shared memory.
constexpr int kArguments = 4;
FASTACT_DEVICE auto tile_arguments() {
  FASTACT_SHARED(double, all, kArguments* kTileChannels);
  return all;
}
// Fills tile_arguments() by read(k, channel of the tile). Each argument has warps of its own, or a
// turn of the block's warps, so that it does not wait for another one's memory. They may be read
// after the next barrier.
template <class T, Way way, class Read>
FASTACT_DEVICE void read_arguments(const Walk<T, way>& walk, const Read& read) {
  const auto all = tile_arguments();
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const int warps = walk.s.block.threads / kWarp,
            teams = warps < kArguments ? 1 : warps / kArguments;
  const int step = warps < kArguments ? warps : kArguments;
  if (warp >= step * teams) return;
#pragma unroll 1
  for (int k = warp % step; k < kArguments; k += step)
#pragma unroll 1
    for (int i = warp / step * kWarp + lane; i < walk.tile.channels; i += teams * kWarp)
      all[k * kTileChannels + i] = read(k, i);
}

// The coefficients of a kernel in shared memory: a number of each kind for each channel of a tile.
template <class T, int numbers>
FASTACT_DEVICE auto tile_numbers() {
  FASTACT_SHARED(Compute<T>, all, numbers * kTileChannels);
  return all;
}
// The coefficients of a thread's unit. Kinds with a bit in `held` are in registers; others are read
// where they are used. Around the call of an activation no registers are left, and none is held.
template <class T, Way way, int numbers, unsigned held>
struct UnitNumbers {
  static constexpr int kLanes = way == kColumns ? Vec<T>::kSize : 1;
  Compute<T> n[numbers][kLanes];
  int first;

  // Call it after a barrier that follows the making of the coefficients.
  FASTACT_DEVICE explicit UnitNumbers(const Walk<T, way>& walk) : first(walk.first) {
    const auto all = tile_numbers<T, numbers>();
#pragma unroll
    for (int k = 0; k < numbers; ++k)
#pragma unroll
      for (int j = 0; j < kLanes; ++j)
        if (held >> k & 1) n[k][j] = all[k * kTileChannels + channel_of(j)];
  }
  FASTACT_DEVICE int channel_of(int lane) const { return first + (way == kColumns ? lane : 0); }
  FASTACT_DEVICE Compute<T> operator()(int k, int lane) const {
    if (held >> k & 1) return n[k][kLanes > 1 ? lane : 0];
    return tile_numbers<T, numbers>()[k * kTileChannels + channel_of(lane)];
  }
};

// The partial results of channels, two numbers each: [coefficient][chunk][2]. A group is several
// coefficients that follow each other, so its parts follow each other too: `each` of them.
struct Parts {
  const double* data;
  int64_t each;
  Divisor chunks;        // of a channel
  int64_t size, length;  // elements of a chunk but the last, and of a channel
  bool is_merged;        // one part for each group, of all its elements

  // Tells which chunk of its channel a part is. channel: the number of that channel, from the first
  // part on.
  FASTACT_DEVICE int64_t chunk_of(int64_t part, int64_t channel) const {
    return part - channel * chunks.by;
  }
  FASTACT_DEVICE double elements(int64_t part) const {
    return double(smaller(size, length - chunk_of(part, chunks(part)) * size));
  }
};

// Groups of the coefficients of neighbouring channels, which share their statistics.
struct Groups {
  Divisor size;
  double count;  // elements of one

  FASTACT_DEVICE int64_t of(int64_t coef) const { return size(coef); }
};

// Stores the pairs of a tile's channels as parts.
template <class T, Way way>
FASTACT_DEVICE void store_parts(const Walk<T, way>& walk, double* parts) {
  const auto pairs = tile_pairs();
  const int mine = int(threadIdx.x);
  if (mine >= walk.tile.channels) return;
  double* to = parts + 2 * ((walk.coef() + mine) * walk.s.count + walk.tile.chunk);
  store(to, double(pairs[mine]));
  store(to + 1, double(pairs[kTileChannels + mine]));
}

// The sums of two terms over the parts of a group, by `width` neighbouring lanes: terms(part, a, b)
// adds them.
template <class Terms>
FASTACT_DEVICE void sum_parts(const Parts& parts, int width, bool idle, double (&sum)[2],
                              const Terms& terms) {
  sum[0] = sum[1] = 0;
  const int64_t each = idle ? 0 : parts.each;
#pragma unroll 2
  for (int64_t i = int(threadIdx.x) % width; i < each; i += width) terms(i, sum);
  add_lanes(sum, width);
}

// Makes the pairs of all groups that a tile has channels of, in tile_pairs(), the first group
// first: call.merge(group, width, idle, pair) makes one pair by `width` lanes. Every thread takes
// part.
template <class T, Way way, class Call>
FASTACT_DEVICE void merge_groups(const Walk<T, way>& walk, const Call& call, int64_t first) {
  const auto pairs = tile_pairs();
  const int count = int(call.groups.of(walk.coef() + walk.tile.channels - 1) - first) + 1;
  int width = kWarp;
  while (width > 1 && width * count > int(blockDim.x)) width /= 2;
  const int here = int(blockDim.x) / width;
  for (int i = 0; i < count; i += here) {
    const int group = i + int(threadIdx.x) / width;
    double pair[2];
    call.template merge<T>(first + group, width, group >= count, pair);
    if (group >= count || threadIdx.x % width != 0) continue;
    pairs[group] = pair[0], pairs[kTileChannels + group] = pair[1];
  }
  __syncthreads();
}

// Makes pairs where a block has whole groups, from the pairs of their channels: merge(channel,
// first, pair) adds a channel's pair to its group's; first: the group's first channel.
template <class T, Way way, class Merge>
FASTACT_DEVICE void merge_tile(const Walk<T, way>& walk, int size, const Merge& merge) {
  if (size == 1) return;
  const auto pairs = tile_pairs();
  const int group = int(threadIdx.x);
  const bool is_there = group * size < walk.tile.channels;
  double pair[2] = {};
  if (is_there) {
    for (int i = 0; i < size; ++i) merge(group * size + i, group * size, pair);
  }
  __syncthreads();
  if (is_there) pairs[group] = pair[0], pairs[kTileChannels + group] = pair[1];
  __syncthreads();
}

// Makes the pairs of all groups, each by a warp, to `merged` OUT.
template <class T, class Call>
FASTACT_KERNEL(kStripThreads)
void merge_apart(FASTACT_GRID_CONSTANT const Call call, const int64_t groups, double* merged) {
  const int64_t group = int64_t(blockIdx.x) * (kStripThreads / kWarp) + int(threadIdx.x) / kWarp;
  double pair[2];
  call.template merge<T>(group, kWarp, group >= groups, pair);
  if (group >= groups || threadIdx.x % kWarp > 0) return;
  store(merged + 2 * group, pair[0]);
  store(merged + 2 * group + 1, pair[1]);
}

// ---- on the host

// Cuts channels into chunks, and threads into units. Every number follows from the shape of the
// channels alone, not from the number of examples.
template <class T>
void plan_threads(Way way, Strips* s) {
  StripBlock& block = s->block;
  constexpr int64_t kSize = Vec<T>::kSize;
  const int64_t vecs = strip_vecs<T>(way), held = kSize * vecs;
  const int64_t units = ceil_div(s->channels, way == kColumns ? kSize : 1);
  block.threads = kStripThreads;
  if (block.across) {
    // Tiles as narrow as 64 bytes, where a block then has all elements of its channels.
    const int64_t of_thread = way == kColumns ? vecs : held;
    block.tx = power_of_two_from(units, way == kColumns ? kColumnUnits : kWarp);
    block.ty = kStripThreads / block.tx;
    int tx = block.tx;
    while (tx > 4 && kStripThreads / tx * of_thread < s->length) tx /= 2;
    block.is_whole = kStripThreads / tx * of_thread >= s->length;
    // Tiles are as narrow where chunks are short: a block then merges few parts of few channels.
    const int64_t all = ceil_div(units * s->length, kStripThreads * of_thread);
    const bool is_short = s->least == 1 && all <= kNarrowRounds * kColumnsAtOnce<T>;
    if (block.is_whole || (way == kColumns && is_short))
      block.tx = tx, block.ty = kStripThreads / tx;
    const int64_t round = block.ty * of_thread, rounds = ceil_div(s->length, round);
    const int64_t most = std::max<int64_t>(1, kColumnsAtOnce<T> / ceil_div(units, block.tx));
    s->size = round * std::max(s->least, ceil_div(rounds, most));
    // Short chunks are of one size: of 1568 elements in rounds of 256, 576 and not 768, 768 and 32.
    if (way == kColumns && is_short && !block.is_whole)
      s->size = std::max(round, ceil_div(ceil_div(s->length, most), block.ty) * block.ty);
  } else if (s->length <= held * kThreadsOfWhole<T, kLines>) {
    const int64_t team = ceil_div(s->length, held);
    block.ty = team <= kWarp ? power_of_two_from(team, kWarp) : int(ceil_div(team, kWarp)) * kWarp;
    if (block.ty > kWarp) block.threads = block.ty;
    block.tx = block.threads / block.ty;
    s->size = s->length;
    block.is_whole = true;
  } else {
    block.tx = 1, block.ty = kStripThreads;
    const int64_t round = held * kStripThreads, rounds = ceil_div(s->length, round);
    const int64_t at_once = std::max<int64_t>(1, kLinesAtOnce / s->channels);
    const int64_t most = std::max(kLineChunks, kLineBlocks / s->channels);
    if (rounds <= kLineRounds * at_once)
      s->size = ceil_div(s->length, kSize * std::min(rounds, at_once)) * kSize;
    else
      s->size = round * std::max<int64_t>(2, (rounds + most / 2) / most);
  }
  block.give_threads(block.ty);
  block.channels = block.tx * int(way == kColumns ? kSize : 1);
  s->give_tasks();
}

// The most chunks of a channel, in any layout of a call's arrays.
template <class T>
int64_t most_chunks(int64_t channels, int64_t length, int64_t least) {
  int64_t most = 0;
  const auto plan = [&](Way way, bool across) {
    Strips s{};
    s.channels = channels, s.length = length, s.least = least, s.block.across = across;
    plan_threads<T>(way, &s);
    most = std::max(most, s.count);
  };
  for (const Way way : {kLines, kSingles}) plan(way, false);
  for (const Way way : {kColumns, kSingles}) plan(way, true);
  return most;
}

// Arrays around their channels: without gaps, as examples x outer x channels x inner, or not.
struct StripLayout {
  bool is_dense;
  int64_t examples, channels, outer, inner;
  int64_t least = 1;  // rounds of a chunk of columns
};

// Runs visit(way as a constant, strips) with the strips of x, dy and the output; absent arrays have
// no data. counts: the axes that count coefficients. Doubles are always gathered, for a vector has
// but two of them.
template <class T, class Visit>
void with_strips(const Operand (&arrays)[kStripRoles], const StripLayout& layout,
                 const bool* counts, bool accumulate, const Visit& visit) {
  constexpr int64_t kSize = Vec<T>::kSize, kMost = int64_t(1) << 31;
  AnyStrips s{};
  uintptr_t bits = 0;
  for (int k = 0; k < kStripRoles; ++k) {
    s.data[k] = arrays[k].data;
    bits |= reinterpret_cast<uintptr_t>(arrays[k].data);
  }
  s.aligned = bits % kVecBytes == 0;
  s.accumulates = accumulate;
  s.examples = layout.examples, s.channels = layout.channels;
  s.length = layout.outer * layout.inner, s.least = layout.least;
  const auto run = [&](auto way) {
    plan_threads<T>(way(), &s);
    visit(way, static_cast<const StripsOf<way()>&>(s));
  };
  s.is_dense = layout.is_dense;
  if (layout.is_dense) {
    s.block.across = layout.inner == 1 && layout.channels > 1;
    s.segments.inner = layout.inner;
    s.segments.run = layout.channels * layout.inner;
    s.segments.example = layout.channels * s.length;
    if constexpr (sizeof(T) < sizeof(double)) {
      if (s.block.across && layout.channels % kSize == 0)
        return run(std::integral_constant<Way, kColumns>());
      if (!s.block.across && s.segments.inner % kSize == 0 && s.length / kSize < kMost) {
        s.segments.by_inner = {s.segments.inner / kSize, s.length / kSize};
        return run(std::integral_constant<Way, kLines>());
      }
    }
    s.segments.by_inner = {s.segments.inner, s.length};
    s.is_dense = s.length < kMost;
  }
  if (s.is_dense) return run(std::integral_constant<Way, kSingles>());
  const int64_t items[] = {sizeof(T), sizeof(T), sizeof(T)};
  Axis<kStripRoles> axes[kMaxAxes];
  int count = find_axes(axes, arrays[kStripX], kStripRoles, arrays, items,
                        [&](int i) { return int(!counts[i]); });
  sort_axes(axes, count, [](const auto& a, const auto& b) { return a.kind < b.kind; });
  const auto of_coefs = [&] {
    return int(std::count_if(axes, axes + count, [](const auto& a) { return a.kind == 0; }));
  };
  order_axes(axes + of_coefs(), count - of_coefs(), kStripX);
  count = merge_axes(axes, count);
  fill_table(&s.table, axes, of_coefs(), count);
  const int channel = of_coefs() - 1;
  s.block.across =
      channel >= 0 && count > channel + 1 && s.channels > 1 &&
      std::abs(axes[channel].stride[kStripX]) < std::abs(axes[count - 1].stride[kStripX]);
  run(std::integral_constant<Way, kSingles>());
}

// Whether a kernel of its own has to merge the parts, because a block would have too many for
// itself: a tile of `channels` has groups of `size` channels, and a channel has a part for each
// chunk.
template <class S>
bool merges_apart(const S& s, int64_t channels, int64_t size) {
  const int64_t groups = std::min(channels, ceil_div(channels, size) + 1);
  return groups * size * s.count > kOwnParts;
}

template <class S>
Parts parts_of(const S& s, int64_t group_size, const double* data) {
  const Divisor chunks(s.count, s.coefs() * s.count);
  return {data, group_size * s.count, chunks, s.size, s.length, false};
}

// Points a call to the parts in `workspace`, after merging them where the blocks do not.
template <class T, class S, class Call>
void give_parts(const S& s, double* workspace, Call* call, cudaStream_t stream) {
  const int64_t size = call->groups.size.by, groups = s.coefs() / size;
  call->parts = parts_of(s, size, workspace);
  if (!merges_apart(s, s.block.channels, size)) return;
  double* merged = workspace + 2 * s.coefs() * s.count;
  const int64_t blocks = ceil_div(groups, kStripThreads / kWarp);
  launch(merge_apart<T, Call>, {blocks, kStripThreads}, stream, *call, groups, merged);
  call->parts = {merged, 1, Divisor(1, groups), 1, 1, true};
}

// Bytes of workspace for the parts of channels, and for the merged parts.
template <class T>
int64_t part_bytes(int64_t examples, int64_t channels, int64_t length, int64_t least) {
  const int64_t pairs = examples * channels * (most_chunks<T>(channels, length, least) + 1);
  return 2 * pairs * int64_t(sizeof(double));
}

// Queues a kernel over all tasks, whose blocks hold whole channels.
template <class S, class... Parameters, class... Arguments>
void launch_whole(void (*kernel)(Parameters...), const S& s, cudaStream_t stream,
                  const Arguments&... arguments) {
  launch(kernel, {blocks_for(s.tasks()), s.block.threads}, stream, s, arguments...);
}
// Queues one whose blocks take tiles in rounds: channels that could be held have no more threads.
template <class S, class... Parameters, class... Arguments>
void launch_rounds(void (*kernel)(Parameters...), S s, cudaStream_t stream,
                   const Arguments&... arguments) {
  if (s.block.threads > kStripThreads) s.block.give_threads(s.block.threads = kStripThreads);
  launch_whole(kernel, s, stream, arguments...);
}

}  // namespace
FASTACT_END_NAMESPACE
