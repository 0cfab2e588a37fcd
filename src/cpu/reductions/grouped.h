// Statistics by groups: each element of x belongs to the group that its label says, or to none.
//
// Outputs are the axes that stay, and each has a result for every group. Elements are read in
// pieces of 512, in double, and added to the lanes of their groups one by one
// (reductions/grouped_kernels.h); where labels hardly change, run by run.
//
// A task is a tile of outputs, with lanes for all their groups, and a chunk of their terms. How the
// terms are cut is a function of the lengths alone, and chunks merge in order: the bits do not
// depend on the threads. Terms are cut where there are few tiles, into chunks that have many terms
// a group, so that merging takes little beside them.
//
// Where a label is one of whole rows of x, contiguous along the outputs, the rows of each group are
// listed first, and a group is a reduction of its own by the ungrouped kernels of columns
// (reductions/reduce.h), whose bits it has.
//
// Nothing is written before every label has been compared with the number of groups: where the
// lanes of all tasks are held, while they are filled, and else in a pass of its own over the
// labels.
//
// With many more groups than labels, every result is first that of no elements, and
// labels become ranks among those that are met: lanes and lists are of these groups alone.
//
// Lanes of double whose squares or sums left its range (common/reductions/range.h) are added up
// anew, times a power of two each: one pass over the elements finds the powers, one adds.
//
// The workspace holds the lanes of all tasks, or of one task a thread. Listed, it holds an offset
// and the label of each term, and there are no more terms than results, or few. With ranks, it
// begins with these, and with the groups that are met.
#pragma once

#include "cpu/core/chunk_reader.h"
#include "cpu/reductions/grouped_kernels.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

struct Grouped {
  enum { kX, kWeights, kWhere, kLabels, kInputs, kY = kInputs, kOperands };

  Reducer reducer;  // stores the results
  const GroupedKernels* kernels;
  StridedOperands operands;  // rows: the outputs; columns: the terms
  int lane;                  // LaneKind
  int term;
  bool is_double, skips, is_by_output;
  int64_t groups;  // that have lanes: all, or as many as may be met
  int64_t all_groups;
  int64_t ranked;                // labels that become ranks; 0: they are groups
  const int64_t* met;            // the group of each rank; null: it is the rank
  int64_t tile, tiles;           // outputs at a time, and how often
  int64_t chunk_terms, chunks;   // of each tile
  int64_t slots, bytes_of_slot;  // of the workspace: each has the lanes of a task
  bool holds_all;                // of all tasks
  bool may_be_far;               // lanes may leave the range of double
  bool is_plain;                 // elements and labels are read where they lie
  bool is_listed;                // the workspace has a list of the terms
  int64_t group_stride;          // of the results, in bytes
  bool is_divided;               // listed: a mean is a sum over the number of its terms
  char* lanes;
  int* has_wrong_label;  // OUT
  int* is_far;           // OUT: whether a lane left the range
};

void prepare(Grouped* grouped, const ReduceTable* table, const GroupedKernels* kernels,
             const ConvertKernels* convert, const MomentsCall& call, int threads);

int64_t workspace_size(const Grouped* grouped);

// Labels become ranks, and are compared with the number of groups.
void rank_labels(Grouped* grouped);
// The index-th of `partitions` parts of storing results of no elements.
void store_nothing_partition(const Grouped* grouped, int64_t index, int64_t partitions);

// Lists the terms of each group, and compares their labels.
void list_terms(const Grouped* grouped);

// The index-th of `partitions` parts of each step: comparing the labels, which `holds_all` leaves
// to the next one; adding up the elements, and storing the results of tasks that are not held;
// storing those that are; and, of these, adding up anew what left the range.
void check_labels_partition(const Grouped* grouped, int64_t index, int64_t partitions);
void grouped_partition(const Grouped* grouped, int64_t index, int64_t partitions);
void store_groups_partition(const Grouped* grouped, int64_t index, int64_t partitions);
void rescale_groups_partition(const Grouped* grouped, int64_t index, int64_t partitions);

}  // namespace fastact
