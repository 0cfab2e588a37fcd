// What lanes of a warp do together: shuffles, votes, __syncwarp.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "block_state.h"

namespace fastact::emulation {
namespace {

std::string hexadecimal(unsigned mask) {
  char digits[16];
  snprintf(digits, sizeof(digits), "0x%08x", mask);
  return digits;
}

const char* name(Call call) {
  constexpr const char* names[] = {"__syncwarp", "__shfl_sync", "__shfl_down_sync",
                                   "__shfl_xor_sync", "__any_sync"};
  return names[int(call)];
}

// The lane whose value `lane` gets.
int source_lane(const Meeting& m, int lane) {
  const int width = m.width[lane], argument = m.argument[lane];
  const int first = lane & ~(width - 1), last = first + width - 1;
  int source = lane;
  switch (m.call) {
    case Call::kIndex:
      return first | (argument & (width - 1));
    case Call::kDown:
      source = lane + argument;
      return source > last ? lane : source;
    case Call::kXor:
      source = lane ^ argument;
      return source > last ? lane : source;
    default:
      return lane;
  }
}

void complete(Warp& warp, const Meeting& m) {
  bool any = false;
  for (int lane = 0; lane < kWarpLanes; ++lane) any |= m.mask >> lane & 1 && m.value[lane];
  const int first_rank = now.rank / kWarpLanes * kWarpLanes;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if (!(m.mask >> lane & 1)) continue;
    Thread& thread = self.threads[size_t(first_rank + lane)];
    thread.state = State::kReady;
    switch (m.call) {
      case Call::kSync:
        break;
      case Call::kAny:
        thread.result = any;
        break;
      default: {
        const int source = source_lane(m, lane);
        if (!(m.mask >> source & 1))
          fault(std::string(name(m.call)) + ": lane " + std::to_string(lane) +
                    " reads inactive lane " + std::to_string(source) + ", which mask " +
                    hexadecimal(m.mask) + " does not name",
                m.site);
        thread.result = m.value[source];
      }
    }
  }
  if (m.call != Call::kSync) return;
  // Each lane of the mask now knows what any of them did or knew.
  ++warp.time;
  uint32_t joined[kWarpLanes] = {};
  for (int b = 0; b < kWarpLanes; ++b)
    for (int a = 0; a < kWarpLanes && m.mask >> b & 1; ++a)
      joined[a] = std::max(joined[a], m.mask >> a & 1 ? warp.time : warp.known[b][a]);
  for (int b = 0; b < kWarpLanes; ++b)
    if (m.mask >> b & 1) memcpy(warp.known[b], joined, sizeof(joined));
}

}  // namespace

void fault_meeting(int warp, const Meeting& m) {
  const int first = warp * kWarpLanes;
  const auto lowest = [](unsigned lanes) { return __builtin_ctz(lanes); };
  make_current(first + lowest(m.arrived));
  fault(std::string("divergent ") + name(m.call) + " with mask " + hexadecimal(m.mask) + ": " +
            whereabouts(first + lowest(m.mask & ~m.arrived)),
        m.site);
}

uint32_t warp_time() { return this_warp().time; }
uint32_t known_warp_time(int rank) { return this_warp().known[this_lane()][rank % kWarpLanes]; }

uint64_t meet(Call call, unsigned mask, uint64_t value, int bytes, int argument, int width,
              const Site& site) {
  Warp& warp = this_warp();
  const int lane = this_lane();
  const auto lowest = [](unsigned lanes) { return std::to_string(__builtin_ctz(lanes)); };
  const auto prefix = [&] { return std::string(name(call)) + " with mask " + hexadecimal(mask); };
  if (!(mask >> lane & 1))
    fault(prefix() + ": the calling lane " + std::to_string(lane) + " is not in the mask", site);
  if (mask & ~warp.present)
    fault(prefix() + " names lane " + lowest(mask & ~warp.present) + ", which the block has not",
          site);
  if (mask & warp.done)
    fault(prefix() + " names lane " + lowest(mask & warp.done) + ", which has returned", site);
  if (width < 1 || width > kWarpLanes || (width & (width - 1)))
    fault(prefix() + ": width must be a power of two up to 32, got " + std::to_string(width), site);
  if (call != Call::kIndex && (argument < 0 || argument >= kWarpLanes))
    fault(prefix() + ": a distance of " + std::to_string(argument) + " lanes", site);

  auto& meetings = warp.meetings;
  auto met = std::find_if(meetings.begin(), meetings.end(), [&](const Meeting& m) {
    return m.mask == mask && m.call == call && m.bytes == bytes && m.site == site;
  });
  if (met == meetings.end()) {
    meetings.push_back({call, mask, 0, bytes, site, {}, {}, {}});
    met = meetings.end() - 1;
  }
  met->arrived |= 1u << lane;
  met->value[lane] = value;
  met->argument[lane] = argument;
  met->width[lane] = width;
  if (met->arrived != met->mask) {
    wait(State::kAtMeeting, site);
  } else {
    const Meeting whole = *met;
    meetings.erase(met);
    complete(warp, whole);
  }
  return this_thread().result;
}

}  // namespace fastact::emulation
