#include "cluster.h"

#include <string>

#include "block_state.h"

extern uint3 fastact_block_index;

namespace fastact::emulation {

int cluster_index() { return int(fastact_block_index.x / self.grid->cluster); }
int block_of_cluster() { return int(fastact_block_index.x % self.grid->cluster); }

namespace {

std::string text_of(int round, int i) {
  return "number " + std::to_string(i) + " of round " + std::to_string(round);
}
void end_round_with_all(Box& box) {
  if (box.received != box.expected) return;
  ++box.rounds, box.expected = -1, box.received = 0;
}

}  // namespace

void open_mailboxes(int size, const Site& site) {
  Thread& thread = this_thread();
  if (thread.opened) fault("a mailbox is opened twice", site);
  for (Box& box : this_block().boxes) {
    box.numbers.resize(size_t(size));
    box.of.resize(size_t(size), -1);
  }
  thread.opened = true;
  ++self.opened;
}

void await_mailboxes(const Site& site) {
  if (!this_thread().opened) fault("a cluster is awaited by a thread that opened no mailbox", site);
  if (self.opened < self.threads.size()) wait(State::kAtCluster, site);
  this_thread().knows_cluster = true;
}

void expect_numbers(int round, int count, const Site& site) {
  Box& box = this_block().boxes[round & 1];
  if (box.rounds != round / 2 || box.expected >= 0)
    fault("round " + std::to_string(round) + " of a mailbox is expected out of turn", site);
  if (count < 0 || size_t(count) > box.numbers.size())
    fault("a mailbox of " + std::to_string(box.numbers.size()) + " numbers for " +
              std::to_string(count),
          site);
  box.expected = count;
  end_round_with_all(box);
}

void send_number(int round, int i, double value, int to, const Site& site) {
  const std::string what =
      text_of(round, i) + " for block " + std::to_string(to) + " of the cluster";
  if (!this_thread().knows_cluster) fault(what + ", which may not have begun", site);
  if (to < 0 || size_t(to) >= self.blocks.size()) fault(what + ", which is not there", site);
  Block& block = self.blocks[size_t(to)];
  Box& box = block.boxes[round & 1];
  if (block.done == int(now.size)) fault(what + ", which has ended", site);
  if (i < 0 || size_t(i) >= box.numbers.size()) fault(what + ": beyond its mailbox", site);
  if (box.rounds != round / 2) fault(what + ", whose mailbox has another round", site);
  if (box.of[size_t(i)] == round) fault(what + ", which has it", site);
  box.numbers[size_t(i)] = value;
  box.of[size_t(i)] = round;
  ++box.received;
  end_round_with_all(box);
}

void await_numbers(int round, const Site& site) {
  Thread& thread = this_thread();
  if (!thread.opened) fault("numbers are awaited by a thread that opened no mailbox", site);
  thread.round = round;
  if (!this_block().has_all(thread)) wait(State::kAtMailbox, site);
}

double received_number(int round, int i, const Site& site) {
  const Box& box = this_block().boxes[round & 1];
  const std::string what = text_of(round, i) + " is read";
  if (this_thread().round < round) fault(what + " by a thread that did not wait for it", site);
  if (i < 0 || size_t(i) >= box.numbers.size() || box.of[size_t(i)] != round)
    fault(what + ", which is not there", site);
  return box.numbers[size_t(i)];
}

}  // namespace fastact::emulation
