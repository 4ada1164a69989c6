// All experts of a group for one layer in one call: rows in, each row's weighted sum over its slots out.
//
// Slots are sorted by expert; then gather, product up, activation, product down, each for all experts at once, so that
// threads meet per step and not per expert; then each row's slots are summed in their order, which threads share as well.
// Rows go through in chunks that bound the memory in between.

#include <algorithm>
#include <new>
#include <vector>

#include "errors.h"
#include "pack.h"
#include "pool.h"
#include "scalars.h"
#include "scratch.h"

namespace {

constexpr int64_t kScratchBytes = 24 << 20;
constexpr int64_t kLeastSlots = 64;
constexpr int32_t kMostExperts = 1 << 20;
constexpr int64_t kWorthSharing = 1 << 15;  // elements; below, other threads are not woken for what is no product

struct Expert {
  Matrix up, down;
  Memory<float> up_bias, down_bias;  // padded to whole panels
};

struct Group {
  const Variant& variant;
  moe_ffn formula;
  int64_t up_rows;
  std::vector<std::unique_ptr<Expert>> experts;
  std::vector<int32_t> places;  // id -> place in experts, or -1
  int64_t facts;  // of a row at most: one for each group of inputs of a matrix of bytes
};

struct Call {
  const Group& group;
  const char* rows;
  int64_t row_stride;
  const int32_t* slot_rows;
  const int32_t* slot_experts;
  const char* slot_weights;
  int32_t weights_dtype;
  char* partial;
  int32_t partial_dtype;
  int32_t threads;
};

// The slots of one expert: places first to first + count in the sorted order.
struct Segment {
  const Expert* expert;
  int64_t first, count;
};

float weight_at(const Call& call, int64_t slot) {
  return widened_at(call.slot_weights + slot * size_of(call.weights_dtype), call.weights_dtype);
}

Memory<float> padded(const float* bias, int64_t count, int64_t panel) {
  const int64_t whole = (count + panel - 1) / panel * panel;
  Memory<float> copy = allocate<float>(whole);
  if (copy) {
    memset(copy.get(), 0, (size_t)whole * sizeof(float));
    memcpy(copy.get(), bias, (size_t)count * sizeof(float));
  }
  return copy;
}

// One chunk of rows on its way through.
class Chunk {
 public:
  Chunk(const Call& call, Scratch& scratch, int64_t first_row, int64_t rows, int64_t first_slot, int64_t slots)
      : call_(call), group_(call.group), variant_(call.group.variant), formula_(call.group.formula),
        scratch_(scratch), first_row_(first_row), rows_(rows), first_slot_(first_slot), slots_(slots),
        up_width_(pad(call.group.up_rows)), out_width_(pad(call.group.formula.hidden)) {}

  static int64_t bytes_per_slot(const Group& group) {
    const int64_t panel = group.variant.panel;
    return 4 * (tile_width(group.formula.hidden) + group.formula.hidden + group.up_rows +
                tile_width(group.formula.inner) + 2 * panel + 8) +
           group.facts * (int64_t)sizeof(RowFacts);
  }

  bool run() {
    if (!take_memory()) return false;
    sort();
    gather();
    multiply(&Expert::up, inputs_, ups_, up_width_);
    activate();
    multiply(&Expert::down, inners_, outputs_, out_width_);
    combine();
    return true;
  }

 private:
  int64_t pad(int64_t columns) const { return (columns + variant_.panel - 1) / variant_.panel * variant_.panel; }

  bool take_memory() {
    const int64_t hidden = tile_width(formula_.hidden), inner = tile_width(formula_.inner);
    const int64_t experts = (int64_t)group_.experts.size();
    const int64_t bytes = Scratch::size<uint32_t>(slots_ * hidden) + Scratch::size<float>(slots_ * up_width_) +
                          Scratch::size<uint32_t>(slots_ * inner) + Scratch::size<float>(slots_ * out_width_) +
                          Scratch::size<RowFacts>(slots_ * group_.facts) + 2 * Scratch::size<int32_t>(slots_) +
                          Scratch::size<int64_t>(experts + 1) + Scratch::size<Segment>(experts) +
                          Scratch::size<SlotOutput>(slots_);
    if (!scratch_.reserve(bytes)) return false;
    inputs_ = scratch_.take<uint32_t>(slots_ * hidden);
    ups_ = scratch_.take<float>(slots_ * up_width_);
    inners_ = scratch_.take<uint32_t>(slots_ * inner);
    outputs_ = scratch_.take<float>(slots_ * out_width_);
    facts_ = scratch_.take<RowFacts>(slots_ * group_.facts);
    sorted_rows_ = scratch_.take<int32_t>(slots_);
    places_ = scratch_.take<int32_t>(slots_);
    starts_ = scratch_.take<int64_t>(experts + 1);
    segments_ = scratch_.take<Segment>(experts);
    slot_outputs_ = scratch_.take<SlotOutput>(slots_);
    return true;
  }

  int32_t expert_of(int64_t slot) const { return group_.places[(size_t)call_.slot_experts[first_slot_ + slot]]; }

  // Stable, by counting.
  void sort() {
    const int64_t experts = (int64_t)group_.experts.size();
    for (int64_t i = 0; i <= experts; ++i) starts_[i] = 0;
    for (int64_t slot = 0; slot < slots_; ++slot) ++starts_[expert_of(slot) + 1];
    for (int64_t i = 0; i < experts; ++i) {
      const int64_t count = starts_[i + 1];
      if (count) segments_[segment_count_++] = {group_.experts[(size_t)i].get(), starts_[i], count};
      starts_[i + 1] += starts_[i];
    }
    for (int64_t slot = 0; slot < slots_; ++slot) {
      const int64_t place = starts_[expert_of(slot)]++;
      places_[slot] = (int32_t)place;
      sorted_rows_[place] = call_.slot_rows[first_slot_ + slot];
    }
  }

  template <class Task>
  void each(int64_t tasks, int64_t elements, const Task& task) {
    parallel(elements < kWorthSharing ? 1 : call_.threads, tasks, task);
  }

  Tiles tiles_of(const Matrix& matrix) const { return variant_.tiles(matrix.dtype, formula_.dtype); }
  RowFacts* facts_of(const Matrix& matrix, const Segment& segment) const {
    return matrix.of_bytes() ? facts_ + segment.first * group_.facts : nullptr;
  }

  void gather() {
    each(segment_count_, slots_ * formula_.hidden, [&](int64_t i) {
      const Segment& segment = segments_[i];
      const Matrix& up = segment.expert->up;
      variant_.gather(call_.rows, formula_.dtype, call_.row_stride, sorted_rows_ + segment.first, segment.count,
                      up.inputs(), tiles_of(up), inputs_ + segment.first * tile_width(up.in), facts_of(up, segment));
    });
  }

  void multiply(Matrix Expert::*part, const uint32_t* tiles, float* sums, int64_t width) {
    const Matrix& any = segments_[0].expert->*part;
    const int64_t row_words = tile_width(any.in);
    // Every expert's panels in as many shares as the average expert's work is worth.
    const int64_t rows = slots_ / segment_count_;
    const int32_t threads = threads_worth(any, variant_.panel, segment_count_ * any.panels, rows, call_.threads);
    const Shares shares(any.panels, rows * any.in * variant_.panel, threads);
    parallel(threads, segment_count_ * shares.count, [&](int64_t task) {
      const Segment& segment = segments_[task / shares.count];
      const int64_t share = task % shares.count;
      const Matrix& matrix = segment.expert->*part;
      variant_.product(matrix, tiles_of(matrix), tiles + segment.first * row_words, facts_of(matrix, segment),
                       segment.count, shares.begin(share), shares.begin(share + 1), sums + segment.first * width,
                       width);
    });
  }

  // In pieces of a few rows each, as one expert may have them all.
  void activate() {
    const int64_t piece = 4 * variant_.tile_rows, most = (slots_ + piece - 1) / piece;
    each(segment_count_ * most, slots_ * group_.up_rows, [&](int64_t task) {
      const Segment& segment = segments_[task / most];
      const int64_t first = task % most * piece;
      const int64_t last = first + piece < segment.count ? first + piece : segment.count;
      if (first < last)
        variant_.activate(formula_, ups_ + segment.first * up_width_, up_width_, segment.expert->up_bias.get(),
                          segment.count, first, last, tiles_of(segment.expert->down), segment.expert->down.group,
                          inners_ + segment.first * tile_width(formula_.inner), facts_of(segment.expert->down, segment));
    });
  }

  // In pieces of a few rows each.
  void combine() {
    constexpr int64_t kPiece = 16;
    each((rows_ + kPiece - 1) / kPiece, slots_ * formula_.hidden, [&](int64_t piece) {
      const int64_t begin = first_row_ + piece * kPiece;
      combine_rows(begin, begin + kPiece < first_row_ + rows_ ? begin + kPiece : first_row_ + rows_);
    });
  }

  void combine_rows(int64_t begin, int64_t end) {
    const int32_t* rows = call_.slot_rows + first_slot_;
    const int64_t row_bytes = formula_.hidden * size_of(call_.partial_dtype);
    int64_t slot = std::lower_bound(rows, rows + slots_, begin) - rows;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = slot;
      for (; slot < slots_ && rows[slot] == row; ++slot) {
        const Expert& expert = *group_.experts[(size_t)expert_of(slot)];
        slot_outputs_[slot] = {outputs_ + places_[slot] * out_width_, expert.down_bias.get(),
                               weight_at(call_, first_slot_ + slot)};
      }
      variant_.combine(formula_, slot_outputs_ + first, slot - first, call_.weights_dtype,
                       call_.partial + row * row_bytes, call_.partial_dtype);
    }
  }

  const Call& call_;
  const Group& group_;
  const Variant& variant_;
  const moe_ffn& formula_;
  Scratch& scratch_;
  const int64_t first_row_, rows_, first_slot_, slots_, up_width_, out_width_;
  int64_t segment_count_ = 0;
  uint32_t *inputs_ = nullptr, *inners_ = nullptr;
  float *ups_ = nullptr, *outputs_ = nullptr;
  RowFacts* facts_ = nullptr;
  int32_t *sorted_rows_ = nullptr, *places_ = nullptr;
  int64_t* starts_ = nullptr;
  Segment* segments_ = nullptr;
  SlotOutput* slot_outputs_ = nullptr;
};

int32_t check(const Call& call, int64_t n_rows, int64_t n_slots, char* error, int64_t size) {
  if (!is_float(call.weights_dtype) || !is_float(call.partial_dtype))
    return fail(error, size, "slot_weights and partial: got dtypes %d and %d, want float32, bfloat16 or float16",
                call.weights_dtype, call.partial_dtype);
  const std::vector<int32_t>& places = call.group.places;
  int32_t before = 0;
  for (int64_t slot = 0; slot < n_slots; ++slot) {
    const int32_t row = call.slot_rows[slot], expert = call.slot_experts[slot];
    if (row < before || row >= n_rows)
      return fail(error, size, "slot_rows: must not decrease and lie within 0 to %lld", (long long)n_rows - 1);
    if (expert < 0 || expert >= (int64_t)places.size() || places[(size_t)expert] < 0)
      return fail(error, size, "slot_experts: expert %d is not held", expert);
    before = row;
  }
  return 0;
}

// Rows from `row` on whose slots, from `slot` on, are no more than `most`; at least one row.
int64_t rows_within(const Call& call, int64_t row, int64_t n_rows, int64_t slot, int64_t n_slots, int64_t most,
                    int64_t* slots) {
  int64_t end = slot, last = row;
  while (last < n_rows) {
    int64_t next = end;
    while (next < n_slots && call.slot_rows[next] == last) ++next;
    if (last > row && next - slot > most) break;
    end = next;
    ++last;
  }
  *slots = end - slot;
  return last - row;
}

bool run(const Call& call, int64_t n_rows, int64_t n_slots) {
  const Group& group = call.group;
  const int64_t fitting = kScratchBytes / Chunk::bytes_per_slot(group);
  const int64_t most = fitting < kLeastSlots ? kLeastSlots : fitting;
  Scratch& scratch = Scratch::of_this_thread();
  const int64_t row_bytes = group.formula.hidden * size_of(call.partial_dtype);
  const StayAwake awake(call.threads);
  bool done = true;
  for (int64_t row = 0, slot = 0; done && row < n_rows;) {
    int64_t slots = 0;
    const int64_t rows = rows_within(call, row, n_rows, slot, n_slots, most, &slots);
    if (slots) {
      done = Chunk(call, scratch, row, rows, slot, slots).run();
    } else {
      memset(call.partial + row * row_bytes, 0, (size_t)(rows * row_bytes));
    }
    row += rows;
    slot += slots;
  }
  scratch.trim();
  return done;
}

}  // namespace

int32_t moe_group_new(int32_t variant, const moe_ffn* formula, void** handle, char* error, int64_t size) {
  if (variant < 0 || variant >= variant_count())
    return fail(error, size, "variant: got %d, this processor runs 0 to %d", variant, variant_count() - 1);
  if (!is_float(formula->dtype)) return fail(error, size, "dtype: can't compute in %d", formula->dtype);
  if (formula->hidden < 1 || formula->inner < 1)
    return fail(error, size, "hidden and inner: got %lld and %lld, want at least 1", (long long)formula->hidden,
                (long long)formula->inner);
  if (formula->activation < MOE_SILU || formula->activation > MOE_CLAMPED_SWIGLU ||
      (formula->activation == MOE_CLAMPED_SWIGLU && !formula->gated))
    return fail(error, size, "activation: got %d, gated %d; there is no such formula", formula->activation,
                formula->gated);
  const int64_t up_rows = formula->inner * (formula->gated ? 2 : 1);
  Group* group = new (std::nothrow) Group{variant_at(variant), *formula, up_rows, {}, {}, 1};
  if (!group) return fail(error, size, "not enough memory");
  *handle = group;
  return 0;
}

int32_t moe_group_add(void* handle, int32_t id, const moe_matrix* up, const moe_matrix* down, const float* up_bias,
                      const float* down_bias, char* error, int64_t size) {
  Group& group = *static_cast<Group*>(handle);
  const moe_ffn& formula = group.formula;
  if (id < 0 || id >= kMostExperts || (id < (int64_t)group.places.size() && group.places[(size_t)id] >= 0))
    return fail(error, size, "expert %d: want an id below %d that is not there yet", id, kMostExperts);
  if (up->out != group.up_rows || up->in != formula.hidden || down->out != formula.hidden || down->in != formula.inner)
    return fail(error, size, "expert %d: up is [%lld, %lld] and down [%lld, %lld], want [%lld, %lld] and [%lld, %lld]",
                id, (long long)up->out, (long long)up->in, (long long)down->out, (long long)down->in,
                (long long)group.up_rows, (long long)formula.hidden, (long long)formula.hidden,
                (long long)formula.inner);
  std::unique_ptr<Expert> expert(new (std::nothrow) Expert);
  if (!expert) return fail(error, size, "not enough memory");
  if (pack_matrix(group.variant, *up, expert->up, error, size)) return 1;
  if (pack_matrix(group.variant, *down, expert->down, error, size)) return 1;
  if (up_bias) expert->up_bias = padded(up_bias, group.up_rows, group.variant.panel);
  if (down_bias) expert->down_bias = padded(down_bias, formula.hidden, group.variant.panel);
  if ((up_bias && !expert->up_bias) || (down_bias && !expert->down_bias))
    return fail(error, size, "not enough memory for the biases of expert %d", id);
  try {
    if (id >= (int64_t)group.places.size()) group.places.resize((size_t)id + 1, -1);
    group.experts.push_back(std::move(expert));
  } catch (const std::bad_alloc&) {
    return fail(error, size, "not enough memory");
  }
  group.places[(size_t)id] = (int32_t)group.experts.size() - 1;
  for (const Matrix* matrix : {&group.experts.back()->up, &group.experts.back()->down})
    if (matrix->of_bytes() && matrix->inputs().groups() > group.facts) group.facts = matrix->inputs().groups();
  return 0;
}

void moe_group_free(void* handle) { delete static_cast<Group*>(handle); }

int64_t moe_group_bytes(const void* handle) {
  int64_t bytes = 0;
  for (const auto& expert : static_cast<const Group*>(handle)->experts) bytes += expert->up.bytes() + expert->down.bytes();
  return bytes;
}

int32_t moe_group_run(const void* handle, const void* rows, int64_t row_stride, int64_t n_rows,
                      const int32_t* slot_rows, const int32_t* slot_experts, const void* slot_weights,
                      int32_t weights_dtype, int64_t n_slots, void* partial, int32_t partial_dtype, int32_t threads,
                      char* error, int64_t size) {
  const Call call{*static_cast<const Group*>(handle), static_cast<const char*>(rows), row_stride, slot_rows,
                  slot_experts, static_cast<const char*>(slot_weights), weights_dtype, static_cast<char*>(partial),
                  partial_dtype, threads};
  if (check(call, n_rows, n_slots, error, size)) return 1;
  if (!run(call, n_rows, n_slots)) return fail(error, size, "not enough memory for %lld slots", (long long)n_slots);
  return 0;
}
