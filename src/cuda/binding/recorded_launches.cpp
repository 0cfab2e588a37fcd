// Launches, recorded to be queued again for other addresses: what a recorded call
// (src/cpu/binding/call_cache.pyx) runs on a device.
//
// The parameters of a kernel are mere bytes here. To find the addresses among them, the function
// that queues the launches is run for several sets of addresses: a word that differs between runs
// must have moved as one buffer did. Everything else (kernels, shapes, all other words) must be
// equal in all runs, or the launches are not replayed.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/core/device.h"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr size_t kWords = 1024;  // of a launch's parameters: CUDA takes 4 KiB
constexpr int kParameters = 16;

// A word that is the address of a buffer plus an offset; less another buffer's address, if `minus`
// names one.
struct Place {
  int word, plus, minus;
  uint64_t offset;

  template <class AddressOf>
  uint64_t value(const AddressOf& address_of) const {
    return address_of(plus) - (minus < 0 ? 0 : address_of(minus)) + offset;
  }
};

struct RecordedLaunch {
  const void* kernel;
  Shape shape;
  Queue queue;
  int device;
  std::vector<int> first;  // the word at which each parameter begins
  std::vector<uint64_t> words;
  std::vector<Place> places;

  bool same_but_words(const RecordedLaunch& o) const {
    return kernel == o.kernel && queue == o.queue && device == o.device && first == o.first &&
           words.size() == o.words.size() && shape.blocks == o.shape.blocks &&
           shape.blocks_y == o.shape.blocks_y && shape.threads == o.shape.threads &&
           shape.threads_y == o.shape.threads_y && shape.shared == o.shape.shared &&
           shape.cluster == o.shape.cluster;
  }
};
using Launches = std::vector<RecordedLaunch>;

struct Run {
  std::vector<uint64_t> buffers;  // their addresses
  Launches launches;
};

// Native functions may leave bytes of parameters unset that nothing reads: with a clear stack these
// are alike in all runs.
[[gnu::noinline]] void clear_stack() {
  char below[1 << 16];
  memset(below, 0, sizeof(below));
  asm volatile("" : : "r"(below) : "memory");
}

class Recording final : public LaunchRecorder {
 public:
  // Records this thread's launches until it ends; another recording may begin meanwhile, as by a
  // finalizer.
  Recording() = default;
  ~Recording() { launch_recorder() = before_; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void begin_run(const char* const* buffers, int count) {
    clear_stack();
    runs_.emplace_back();
    for (int k = 0; k < count; ++k)
      runs_.back().buffers.push_back(reinterpret_cast<uintptr_t>(buffers[k]));
  }

  void take(const void* kernel, const Shape& shape, Queue queue, void* const* parameters,
            const size_t* sizes, int count) override {
    RecordedLaunch launch{kernel, shape, queue, 0, {}, {}, {}};
    FASTACT_CUDA_CHECK(cudaGetDevice(&launch.device));
    for (int k = 0; k < count; ++k) {
      const size_t begin = (launch.words.size() + 1) & ~size_t{1};  // vectors have 16 bytes
      launch.first.push_back(int(begin));
      launch.words.resize(begin + (sizes[k] + 7) / 8);
      memcpy(&launch.words[begin], parameters[k], sizes[k]);
    }
    runs_.back().launches.push_back(std::move(launch));
  }

  // The launches of the first run with their places; none where the runs differ otherwise.
  std::unique_ptr<Launches> launches(int device) const {
    auto found = std::make_unique<Launches>(runs_.at(0).launches);
    for (const Run& run : runs_)
      if (run.launches.size() != found->size()) return nullptr;
    for (size_t i = 0; i < found->size(); ++i) {
      RecordedLaunch& launch = (*found)[i];
      if (launch.device != device || launch.words.size() > kWords ||
          launch.first.size() > size_t(kParameters))
        return nullptr;
      for (const Run& run : runs_)
        if (!launch.same_but_words(run.launches[i])) return nullptr;
      for (size_t word = 0; word < launch.words.size(); ++word)
        if (!find_place(i, word, &launch.places)) return nullptr;
    }
    return found;
  }

 private:
  uint64_t value(const Run& run, size_t launch, size_t word) const {
    return run.launches[launch].words[word];
  }

  // Whether a word is the same in all runs, or is a place; then the place is added to `places`.
  bool find_place(size_t launch, size_t word, std::vector<Place>* places) const {
    const uint64_t here = value(runs_[0], launch, word);
    const auto all = [&](auto is_so) { return std::all_of(runs_.begin(), runs_.end(), is_so); };
    if (all([&](const Run& run) { return value(run, launch, word) == here; })) return true;
    const int count = int(runs_[0].buffers.size());
    for (int minus = -1; minus < count; ++minus)
      for (int plus = 0; plus < count; ++plus) {
        Place place{int(word), plus, minus, 0};
        place.offset = here - place.value([&](int k) { return runs_[0].buffers[k]; });
        const auto is_there = [&](const Run& run) {
          return value(run, launch, word) == place.value([&](int k) { return run.buffers[k]; });
        };
        if (!all(is_there)) continue;
        places->push_back(place);
        return true;
      }
    return false;
  }

  LaunchRecorder* const before_ = launch_recorder();
  std::vector<Run> runs_;
};

void* begin_recording() { return launch_recorder() = new Recording; }

Recording* recording_at(void* begun) {
  return static_cast<Recording*>(static_cast<LaunchRecorder*>(begun));
}

void begin_run(void* recording, const char* const* buffers, int count) {
  recording_at(recording)->begin_run(buffers, count);
}

void* end_recording(void* recording, int device) {
  const std::unique_ptr<Recording> ended(recording_at(recording));
  return ended->launches(device).release();
}

void replay(const void* launches, char* const* buffers, int device, void* stream) {
  alignas(16) uint64_t words[kWords];
  void* parameters[kParameters];
  const DeviceGuard guard(device);
  for (const RecordedLaunch& launch : *static_cast<const Launches*>(launches)) {
    std::copy(launch.words.begin(), launch.words.end(), words);
    for (const Place& place : launch.places)
      words[place.word] =
          place.value([&](int k) { return reinterpret_cast<uintptr_t>(buffers[k]); });
    for (size_t k = 0; k < launch.first.size(); ++k) parameters[k] = words + launch.first[k];
    launch.queue(launch.kernel, launch.shape, static_cast<cudaStream_t>(stream), parameters);
  }
}

void drop(void* launches) { delete static_cast<Launches*>(launches); }

}  // namespace

void add_recorded_launches(DeviceTable* table) {
  table->begin_recording = begin_recording;
  table->begin_run = begin_run;
  table->end_recording = end_recording;
  table->replay = replay;
  table->drop = drop;
}

FASTACT_END_NAMESPACE
