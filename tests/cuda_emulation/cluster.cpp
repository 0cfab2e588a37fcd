#include "cluster.h"

#include <string>

#include "block_state.h"

extern uint3 fastact_block_index;

namespace fastact::emulation {

int cluster_index() { return int(fastact_block_index.x / self.grid->cluster); }
int block_of_cluster() { return int(fastact_block_index.x % self.grid->cluster); }

void open_mailbox(int count, int size, const Site& site) {
  Thread& thread = this_thread();
  if (thread.opened) fault("a mailbox is opened twice", site);
  if (count < 0 || count > size)
    fault("a mailbox of " + std::to_string(size) + " numbers for " + std::to_string(count), site);
  for (Block& block : self.blocks) {
    if (block.expected >= 0 && block.expected != count)
      fault("threads of a cluster expect " + std::to_string(block.expected) + " and " +
                std::to_string(count) + " numbers",
            site);
  }
  Block& block = this_block();
  block.expected = count;
  block.numbers.resize(size_t(size));
  block.has_come.resize(size_t(size));
  thread.opened = true;
  ++self.opened;
}

void await_mailboxes(const Site& site) {
  if (!this_thread().opened) fault("a cluster is awaited by a thread that opened no mailbox", site);
  if (self.opened < self.threads.size()) wait(State::kAtCluster, site);
  this_thread().knows_cluster = true;
}

void send_number(int i, double value, int to, const Site& site) {
  const std::string what =
      "number " + std::to_string(i) + " for block " + std::to_string(to) + " of the cluster";
  if (!this_thread().knows_cluster) fault(what + ", which may not have begun", site);
  if (to < 0 || size_t(to) >= self.blocks.size()) fault(what + ", which is not there", site);
  Block& block = self.blocks[size_t(to)];
  if (block.done == int(now.size)) fault(what + ", which has ended", site);
  if (i < 0 || size_t(i) >= block.numbers.size()) fault(what + ": beyond its mailbox", site);
  if (block.has_come[size_t(i)]) fault(what + ", which has it", site);
  if (block.received == block.expected) fault(what + ", which expects no more", site);
  block.numbers[size_t(i)] = value;
  block.has_come[size_t(i)] = true;
  ++block.received;
}

void await_numbers(const Site& site) {
  if (!this_thread().opened) fault("numbers are awaited by a thread that opened no mailbox", site);
  const Block& block = this_block();
  if (block.received < block.expected) wait(State::kAtMailbox, site);
  this_thread().knows_numbers = true;
}

double received_number(int64_t i, const Site& site) {
  const Block& block = this_block();
  const std::string what = "number " + std::to_string(i) + " of a mailbox is read";
  if (!this_thread().knows_numbers) fault(what + " by a thread that did not wait for it", site);
  if (i < 0 || size_t(i) >= block.numbers.size() || !block.has_come[size_t(i)])
    fault(what + ", which nobody sent", site);
  return block.numbers[size_t(i)];
}

}  // namespace fastact::emulation
