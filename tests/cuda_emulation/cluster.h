// Clusters: blocks that run at the same time. Their threads stand behind each other in one list,
// the first block's first.
//
// A mailbox is what cuda/core/cluster.cuh says. Faults: a number sent before this thread knows that
// all blocks run, to a block that is not there or has ended, twice, beyond the box, or of a round
// before the box has all of the last one; a number read by a thread that did not wait, or after the
// next round's has come in its place; waits that never end. Nothing else orders blocks of a
// cluster: to memory.h they are different blocks.
#pragma once

#include <cstdint>

#include "fault.h"

namespace fastact::emulation {

constexpr int kMostOfCluster = 16, kPortableCluster = 8;  // blocks

int cluster_index();
int block_of_cluster();

void open_mailboxes(int size, const Site& site);
void await_mailboxes(const Site& site);
void expect_numbers(int round, int count, const Site& site);
void send_number(int round, int i, double value, int block, const Site& site);
void await_numbers(int round, const Site& site);
double received_number(int round, int i, const Site& site);

}  // namespace fastact::emulation
