/* A simulated CUDA device for a CPU build of torch.
 *
 * Tensors on cuda:N are ordinary torch tensors. A boxed fallback for the dispatch key CUDA runs each operator on the CPU (values cpu) or on
 * the meta device (values none: only shapes), and charges its cost to an asynchronous clock. This file also holds the device guard (streams,
 * events), the CUDA hooks, the allocators (a caching allocator with torch's rules, pinned host memory) and the memory that processes share.
 *
 * docs/simulated.md says what the device does, and where it differs from a GPU: the ten differences that hid faults are a table there.
 *
 * build.py compiles the file; runtime.py loads it and gives it to torch.cuda. cards.py writes the configuration that `read_machine` reads.
 */
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_slow_conv2d_backward.h>
#include <ATen/ops/_slow_conv2d_forward.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <unordered_map>
#include <unordered_set>

using namespace c10;

/* --- the machine ---------------------------------------------------------------------------------------------------- */

struct Card {
  std::string uuid;
  double memory, context, bf16, fp16, tf32, fp32, fp64, int8, bandwidth, link, peer;
};

/* What one process uses of one card, from its first call that needs a context there. The fake driver and the other processes read it. */
struct Slot {
  int32_t pid, card;
  int64_t reserved, allocated;
  double busy_s, flops, bytes, h2d, d2h;
  double active_s, sm_s, tensor_s, dram_s;  // seconds: of periods with a kernel; of the SMs, the tensor cores and the memory at work
};
constexpr int SLOTS = 256, CARDS = 8, ROOMS = 64, SEATS = 512;

/* One collective of a group: the moment at which the last card is ready is known when all of them have arrived. `turn`: its number in the group. */
struct Seat {
  std::atomic<int64_t> turn, latest;
  std::atomic<int32_t> arrived, left;
};

/* What all processes of the machine share, besides the slots. machine.py writes the clocks; the file begins with zeros. */
struct Shared {
  double clocks[CARDS];  // of the SMs, as a share of the highest; 0: not known yet
  std::atomic<int64_t> rooms_given;
  Seat rooms[ROOMS][SEATS];  // a room for each group of processes
};

/* What kernels and copies take of a card. */
struct Cost {
  double seconds = 0, flops = 0, bytes = 0, h2d = 0, d2h = 0, sm_s = 0, tensor_s = 0, dram_s = 0;
  uint64_t kernels = 1;
  bool copies = false;  // by a copy engine, not by SMs

  void add(const Cost& more) {
    flops += more.flops, bytes += more.bytes, h2d += more.h2d, d2h += more.d2h;
    sm_s += more.sm_s, tensor_s += more.tensor_s, dram_s += more.dram_s, kernels += more.kernels;
  }
};

static bool with_values = true;
static double slowdown = 1, kernel_s = 3e-6, gemm_share = 0.75, memory_share = 0.9;
static size_t queue_depth = 1024;
static std::vector<Card> cards;
static Slot* shared_slots = nullptr;
static Shared* shared = nullptr;

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void sleep_until(double t) {
  for (double left = t - now(); left > 0; left = t - now()) std::this_thread::sleep_for(std::chrono::duration<double>(left));
}

static bool alive(int pid) { return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM); }

static Slot* claim_slot(int card) {
  static Slot own[8];
  if (!shared_slots) return &own[card];
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < SLOTS; i++) {
      Slot& s = shared_slots[i];
      int32_t before = std::atomic_ref<int32_t>(s.pid).load();
      if (before == 0 || (round && !alive(before)))
        if (std::atomic_ref<int32_t>(s.pid).compare_exchange_strong(before, getpid())) {
          s = Slot{getpid(), card};
          return &s;
        }
    }
  return &own[card];
}

struct Other { int pid; int64_t bytes; };

static std::vector<Other> others_on(int card) {
  std::vector<Other> found;
  for (int i = 0; shared_slots && i < SLOTS; i++) {
    const Slot& s = shared_slots[i];
    if (s.pid && s.pid != getpid() && s.card == card && alive(s.pid)) found.push_back({s.pid, s.reserved + (int64_t)cards[card].context});
  }
  return found;
}

/* --- memory: torch's caching allocator --------------------------------------------------------------------------------- */

constexpr size_t MIB = 1 << 20, SMALL = MIB, SMALL_SEGMENT = 2 * MIB, LARGE_SEGMENT = 20 * MIB, MIN_LARGE = 10 * MIB;

struct Block;
struct BySize { bool operator()(const Block* a, const Block* b) const; };

/* Free blocks, large and small. A CUDA graph has a pool of its own: what it frees during the capture stays its own until it is reset. */
struct Pool {
  std::set<Block*, BySize> free_blocks[2];
  int graphs = 0;
};

struct Block {
  size_t address, size, asked;
  bool small, in_use = false;
  Block *before = nullptr, *after = nullptr;  // of the same segment
  Pool* pool = nullptr;  // none: of an expandable segment
};

bool BySize::operator()(const Block* a, const Block* b) const { return std::tie(a->size, a->address) < std::tie(b->size, b->address); }

static std::string gib(double bytes) {
  char text[64];
  snprintf(text, sizeof text, bytes >= 1 << 30 ? "%.2f GiB" : "%.2f MiB", bytes / (bytes >= 1 << 30 ? 1 << 30 : MIB));
  return text;
}

/* Best fit among free blocks; a segment is split and merged again (c10/cuda/CUDACachingAllocator.cpp). Segments of one size are not told
 * apart by stream. With expandable_segments a large block takes what is free, wherever it lies. */
struct Cache {
  int index = 0, card = 0;
  Slot* slot = nullptr;
  double fraction = 1;
  size_t allocated = 0, reserved = 0, allocated_peak = 0, reserved_peak = 0, retries = 0, ooms = 0, next_address = 0x7e0000000000;
  size_t expandable_free = 0;
  bool expandable = false;
  int mallocs = 0, frees = 0;  // calls of cudaMalloc and cudaFree that the host has not paid for
  Pool common;
  std::map<uint64_t, Pool> of_graphs;

  void start() {
    for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})
      if (const char* text = getenv(name)) expandable |= strstr(text, "expandable_segments:True") != nullptr;
  }

  double free_on_card() const {
    double used = (slot ? cards[card].context : 0) + reserved;
    for (const Other& other : others_on(card)) used += other.bytes;
    return std::max(0.0, cards[card].memory - used);
  }

  bool fits(size_t more) const { return more <= free_on_card() && reserved + more <= fraction * cards[card].memory; }

  void count(int64_t used, int64_t held) {
    allocated += used, reserved += held;
    allocated_peak = std::max(allocated_peak, allocated), reserved_peak = std::max(reserved_peak, reserved);
    if (slot) slot->allocated = allocated, slot->reserved = reserved;
  }

  Block* allocate(size_t asked, Pool* own = nullptr) {
    size_t size = std::max<size_t>(512, (asked + 511) / 512 * 512);
    bool small = size <= SMALL;
    if (expandable && !small && !own) {
      size_t segment = (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB), reused = std::min(segment, expandable_free), more = segment - reused;
      if (more && !fits(more)) {
        release();
        reused = 0, more = segment;
        if (!fits(more)) out_of_memory(asked);
      }
      expandable_free -= reused;
      Block* block = new Block{next_address += segment, segment, asked, false, true};
      count(segment, more);
      return block;
    }
    if (!own) own = &common;
    auto& pool = own->free_blocks[small];
    Block key{0, size, asked, small};
    auto found = pool.lower_bound(&key);
    Block* block;
    if (found != pool.end()) {
      block = *found;
      pool.erase(found);
    } else {
      size_t segment = small ? SMALL_SEGMENT : size < MIN_LARGE ? LARGE_SEGMENT : (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
      if (!fits(segment)) {
        release();
        retries++;
        if (!fits(segment)) out_of_memory(asked);
      }
      block = new Block{next_address, segment, asked, small, false, nullptr, nullptr, own};
      next_address += segment, mallocs++;
      count(0, segment);
    }
    if (block->size - size >= (small ? 512 : SMALL + 1)) {
      Block* rest = new Block{block->address + size, block->size - size, 0, small, false, block, block->after, own};
      if (block->after) block->after->before = rest;
      block->after = rest, block->size = size;
      pool.insert(rest);
    }
    block->in_use = true, block->asked = asked;
    count(block->size, 0);
    return block;
  }

  void give_back(Block* block) {
    count(-(int64_t)block->size, 0);
    block->in_use = false;
    if (!block->pool) {
      expandable_free += block->size;
      delete block;
      return;
    }
    auto& pool = block->pool->free_blocks[block->small];
    if (Block* b = block->before; b && !b->in_use) {
      pool.erase(b);
      b->size += block->size, b->after = block->after;
      if (block->after) block->after->before = b;
      delete block;
      block = b;
    }
    if (Block* a = block->after; a && !a->in_use) {
      pool.erase(a);
      block->size += a->size, block->after = a->after;
      if (a->after) a->after->before = block;
      delete a;
    }
    pool.insert(block);
  }

  void release(Pool& own) {
    for (auto& pool : own.free_blocks)
      for (auto i = pool.begin(); i != pool.end();) {
        Block* block = *i;
        if (block->before || block->after) { ++i; continue; }
        count(0, -(int64_t)block->size);
        i = pool.erase(i);
        delete block;
        frees++;
      }
  }

  void release() { /* whole free segments go back to the card */
    release(common);
    for (auto& [id, pool] : of_graphs)
      if (!pool.graphs) release(pool);
    count(0, -(int64_t)expandable_free);
    expandable_free = 0;
  }

  size_t inactive_split() const {
    size_t total = 0;
    for (auto& pool : common.free_blocks)
      for (Block* block : pool)
        if (block->before || block->after) total += block->size;
    return total;
  }

  [[noreturn]] void out_of_memory(size_t asked) {
    ooms++;
    const Card& c = cards[card];
    std::ostringstream text;
    text << "CUDA out of memory. Tried to allocate " << gib(asked) << ". GPU " << index << " has a total capacity of " << gib(c.memory)
         << " of which " << gib(free_on_card()) << " is free. ";
    for (const Other& other : others_on(card)) text << "Process " << other.pid << " has " << gib(other.bytes) << " memory in use. ";
    text << "Including non-PyTorch memory, this process has " << gib(c.context + reserved) << " memory in use. ";
    if (fraction < 1) text << gib(fraction * c.memory) << " allowed; ";
    text << "Of the allocated memory " << gib(allocated) << " is allocated by PyTorch, and " << gib(reserved - allocated)
         << " is reserved by PyTorch but unallocated.";
    TORCH_CHECK_WITH(OutOfMemoryError, false, text.str());
  }
};

/* --- the clock: streams, events, a launch queue -------------------------------------------------------------------------- */

/* A moment of a stream. It is known at once, or when the collectives before it have begun. */
struct Moment {
  double t = 0;
  bool known = false;
};
using MomentOf = std::shared_ptr<Moment>;

struct Meeting;

/* What the host has issued on a stream: a kernel or a copy (`cost`), with `meeting` a collective; an event (`mark`); or a wait for an event (`awaited`). */
struct Issued {
  double at;  // the earliest moment at which it can begin
  Cost cost;
  std::shared_ptr<Meeting> meeting;
  MomentOf mark, awaited;
};

/* `waiting`: behind a collective that has not begun, in the order of issue. */
struct Timeline {
  double tail = 0;
  std::deque<double> ends;
  std::deque<Issued> waiting;
};

struct Device_ {
  Cache cache;
  std::unordered_map<StreamId, Timeline> streams;
  uint64_t kernels = 0;
  double busy_s = 0;
  int64_t last_period = -1;  // that had a kernel
  MomentOf failing;  // the end of a kernel whose assertion fails: from then on each call fails
};

static std::recursive_mutex lock;
static std::vector<Device_*> devices;  // the visible ones
static std::string config_path;
static void (*sync_callback)(const char*) = nullptr;
thread_local int present_device = 0;
thread_local StreamId current_stream[8];

/* Memory that all processes share; null where there is none. Each of them gives the file the same size. */
static void* map_file(const std::string& path, size_t bytes) {
  int fd = open(path.c_str(), O_RDWR);
  bool sized = fd >= 0 && !ftruncate(fd, bytes);
  void* at = sized ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (fd >= 0) close(fd);
  return at == MAP_FAILED ? nullptr : at;
}

static void read_machine() {
  std::ifstream file(config_path);
  std::string line, word;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    words >> word;
    if (word == "values") words >> word, with_values = word == "cpu";
    else if (word == "slowdown") words >> slowdown;
    else if (word == "kernel_s") words >> kernel_s;
    else if (word == "gemm_share") words >> gemm_share;
    else if (word == "memory_share") words >> memory_share;
    else if (word == "queue") words >> queue_depth;
    else if (word == "processes") words >> word, shared_slots = (Slot*)map_file(word, sizeof(Slot) * SLOTS);
    else if (word == "shared") words >> word, shared = (Shared*)map_file(word, sizeof(Shared));
    else if (word == "card") {
      Card c;
      words >> c.uuid >> c.memory >> c.context >> c.bf16 >> c.fp16 >> c.tf32 >> c.fp32 >> c.fp64 >> c.int8 >> c.bandwidth >> c.link >> c.peer;
      cards.push_back(c);
    }
  }
}

/* CUDA_VISIBLE_DEVICES as the driver reads it: indices or the beginning of a uuid; the first entry that is no device ends the list. */
static std::vector<int> visible_cards() {
  std::vector<int> found;
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    for (size_t i = 0; i < cards.size(); i++) found.push_back(i);
    return found;
  }
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int match = -1;
    char* end;
    long number = strtol(part.c_str(), &end, 10);
    if (!part.empty() && !*end && number >= 0 && number < (long)cards.size()) match = number;
    for (size_t i = 0; match < 0 && part.size() > 4 && i < cards.size(); i++)
      if (cards[i].uuid.rfind(part, 0) == 0) match = i;
    if (match < 0 || std::count(found.begin(), found.end(), match)) break;
    found.push_back(match);
  }
  return found;
}

/* --- fork: a child of a process that has initialised CUDA cannot use it ---------------------------------------------------- */

static bool in_bad_fork = false;
static std::mutex pinned_lock, shapes_lock;
static void (*tell_torch_of_forks)(DeviceType) = nullptr;  // torch::utils::register_fork_handler_for_device_init

static void hold_locks() { lock.lock(), pinned_lock.lock(), shapes_lock.lock(); }
static void let_go() { shapes_lock.unlock(), pinned_lock.unlock(), lock.unlock(); }
static void in_child() {
  in_bad_fork = true;
  new (&lock) std::recursive_mutex;  // the thread that holds them has another id here
  new (&pinned_lock) std::mutex;
  new (&shapes_lock) std::mutex;
  for (Device_* d : devices)
    if (d->cache.slot) d->cache.slot = new Slot(*d->cache.slot);  // the shared figures belong to the parent
  shared_slots = nullptr, shared = nullptr;
}

/* From the first call to the driver on: children are told. */
static void poison_forks() {
  static bool done = false;
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (std::exchange(done, true)) return;
  pthread_atfork(hold_locks, let_go, in_child);
  if (tell_torch_of_forks) tell_torch_of_forks(DeviceType::CUDA);
}

static void require_usable() { TORCH_CHECK(!in_bad_fork, "CUDA error: initialization error (simulated)"); }

/* A destructor that calls CUDA throws in such a child, and C++ ends a process whose destructor throws. */
[[noreturn]] static void die_in_destructor(const char* freed) {
  fprintf(stderr, "CUDA error: initialization error (simulated): process %d freed %s, but CUDA was initialised in its parent %d before the fork\n",
          getpid(), freed, getppid());
  abort();
}

/* The environment counts at the first use, as in the real driver. */
static void initialise() {
  static bool done = false;
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (done) return;
  done = true;
  poison_forks();
  for (int card : visible_cards()) {
    Device_* d = new Device_;
    d->cache.index = devices.size(), d->cache.card = card;
    d->cache.start();
    devices.push_back(d);
  }
}

/* A device as torch counts for it, without a context on the card. */
static Device_& figures(int index) {
  if (devices.empty()) initialise();
  if (index < 0) index = present_device;
  TORCH_CHECK(index < (int)devices.size(), "CUDA error: invalid device ordinal (simulated)");
  return *devices[index];
}

/* A device for a call that needs a context: the first one makes it. */
static Device_& device(int index) {
  require_usable();
  Device_& d = figures(index);
  if (!d.cache.slot) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (!d.cache.slot) d.cache.slot = claim_slot(d.cache.card);
  }
  return d;
}

static bool has_context(int index) { return index < (int)devices.size() && devices[index]->cache.slot; }

static StreamId stream_of(int index) { return current_stream[index & 7]; }

/* --- stream capture ------------------------------------------------------------------------------------------------------- */

struct Held;

/* The work of a captured graph: `total.seconds` is the length of its longest chain of streams. `reads`: the storages outside of its own pool whose
 * addresses it keeps; `freed`: one of them is gone. */
struct Graph {
  Cost total;
  int index = -1;
  uint64_t pool = 0;
  bool captured = false, freed = false;
  std::set<Held*> reads;
};

enum CaptureMode { GLOBAL, THREAD_LOCAL, RELAXED };

/* One capture at a time in a process, as torch demands. */
struct Capture {
  uint64_t id;
  Graph* graph;
  StreamId origin;
  CaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
  std::unordered_map<StreamId, double> tails;  // seconds from the beginning of the graph, of each stream that takes part

  void add(StreamId stream, const Cost& cost) {
    TORCH_CHECK(!invalid, "CUDA error: operation failed due to a previous error during capture (simulated)");
    tails[stream] += cost.seconds;
    graph->total.add(cost);
  }
};
static Capture* capture = nullptr;

static bool is_capturing(int index, StreamId stream) {
  if (!capture) return false;
  std::lock_guard<std::recursive_mutex> hold(lock);
  return capture && capture->graph->index == index && capture->tails.count(stream);
}

/* Ends the capture with an error where CUDA does: for calls that wait, ask or allocate. `own`: the call concerns the capturing stream itself. */
static void refuse_in_capture(bool own) {
  if (!capture) return;
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (!capture || (!own && (capture->mode == RELAXED || (capture->mode == THREAD_LOCAL && capture->thread != std::this_thread::get_id())))) return;
  capture->invalid = true;
  TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing (simulated)");
}

/* NVML's utilisation is the share of its sample periods in which a kernel ran, however short. */
constexpr double PERIOD_S = 1e-3;

static void count_work(Device_& d, const Cost& cost, double end) {
  Slot& slot = *d.cache.slot;
  d.kernels += cost.kernels, d.busy_s += cost.seconds;
  slot.busy_s += cost.seconds, slot.flops += cost.flops, slot.bytes += cost.bytes, slot.h2d += cost.h2d, slot.d2h += cost.d2h;
  slot.sm_s += cost.sm_s, slot.tensor_s += cost.tensor_s, slot.dram_s += cost.dram_s;
  if (cost.copies) return;
  int64_t first = std::max<int64_t>((end - cost.seconds) / PERIOD_S, d.last_period + 1), last = end / PERIOD_S;
  if (last >= first) slot.active_s += (last - first + 1) * PERIOD_S, d.last_period = last;
}

/* A failed assertion of a kernel spoils the context: each call that needs it fails until the process ends. */
static void require_sound(const Device_& d) {
  if (!d.failing || !d.failing->known || now() < d.failing->t) return;
  throw AcceleratorError({__func__, __FILE__, __LINE__}, 710,
                         "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
                         "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` "
                         "to enable device-side assertions.\n");
}

/* A collective of a group. The cards of all its processes begin it at the same moment, when the last of them is ready. No host waits for that. */
struct Meeting {
  Seat& seat;
  int64_t turn;
  int size;
  bool arrived = false;
  double ready = 0, began = 0;

  bool begins(double now_ready) {
    if (!arrived) {
      if (seat.turn.load() != turn) return false;  // others are at the collective that had this seat before
      ready = now_ready, arrived = true;
      int64_t own = std::bit_cast<int64_t>(ready), before = seat.latest.load();
      while (before < own && !seat.latest.compare_exchange_weak(before, own)) {}
      seat.arrived++;
    }
    if (seat.arrived.load() < size) return false;
    began = std::bit_cast<double>(seat.latest.load());
    if (++seat.left == size) {
      seat.latest = 0, seat.arrived = 0, seat.left = 0;
      seat.turn = turn + SEATS;
    }
    return true;
  }
};

/* Puts `issued` on the timeline. Returns false where it is not known yet when it begins. */
static bool place(Device_& d, Timeline& t, const Issued& issued) {
  double start = std::max(issued.at, t.tail);
  if (issued.mark) {
    issued.mark->t = start, issued.mark->known = true;
  } else if (issued.awaited) {
    if (!issued.awaited->known) return false;
    t.tail = std::max(t.tail, issued.awaited->t);
  } else {
    if (issued.meeting) {
      if (!issued.meeting->begins(start)) return false;
      start = std::max(start, issued.meeting->began);
    }
    t.tail = start + issued.cost.seconds;
    t.ends.push_back(t.tail);
    count_work(d, issued.cost, t.tail);
  }
  return true;
}

/* Goes on behind the collectives that have begun. */
static void advance() {
  std::lock_guard<std::recursive_mutex> hold(lock);
  for (bool moved = true; std::exchange(moved, false);)
    for (Device_* d : devices)
      for (auto& [id, t] : d->streams)
        while (!t.waiting.empty() && place(*d, t, t.waiting.front())) t.waiting.pop_front(), moved = true;
}

/* The cards go on without their hosts. */
constexpr auto LOOK = std::chrono::microseconds(200);
static void advance_always() {
  static std::once_flag once;
  std::call_once(once, [] {
    static std::atomic<bool> over{false};
    static std::thread thread([] {
      pthread_setname_np(pthread_self(), "cuda-clock");
      while (!over) advance(), std::this_thread::sleep_for(LOOK);
    });
    static const pid_t owner = getpid();
    atexit([] {
      over = true;
      getpid() == owner ? thread.join() : thread.detach();  // a forked child has no such thread
    });
  });
}

/* With the lock held. */
static void issue(Device_& d, Timeline& t, Issued issued) {
  if (!t.waiting.empty()) advance();
  if (!t.waiting.empty() || !place(d, t, issued)) t.waiting.push_back(std::move(issued));
}

static bool is_broken(int index) {
  const MomentOf failing = devices[index]->failing;
  return failing && failing->known && now() >= failing->t;
}

static MomentOf mark(int index, StreamId stream) {
  Device_& d = device(index);
  std::lock_guard<std::recursive_mutex> hold(lock);
  MomentOf moment = std::make_shared<Moment>();
  issue(d, d.streams[stream], {.at = now(), .mark = moment});
  return moment;
}

static bool passed(const MomentOf& moment) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (!moment->known) advance();
  return moment->known && now() >= moment->t;
}

/* The time of a moment, which may be to come. */
static double time_of(const MomentOf& moment) {
  for (;; std::this_thread::sleep_for(LOOK / 4)) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (!moment->known) advance();
    if (moment->known) return moment->t;
  }
}

/* `ready`: when the work can begin, if that is not now. */
static void launch(int index, StreamId stream, const Cost& cost, double ready = INFINITY, std::shared_ptr<Meeting> meeting = nullptr) {
  Device_& d = device(index);
  std::unique_lock<std::recursive_mutex> hold(lock);
  require_sound(d);
  if (capture && is_capturing(index, stream)) return capture->add(stream, cost);
  Timeline& t = d.streams[stream];
  double present = now();
  for (;;) {
    if (!t.waiting.empty()) advance();
    while (!t.ends.empty() && t.ends.front() <= present) t.ends.pop_front();
    if (t.ends.size() + t.waiting.size() < queue_depth) break;
    double first = t.ends.empty() ? present + 1e-4 : t.ends.front();  // a full launch queue makes the host wait
    hold.unlock();
    sleep_until(first);
    hold.lock();
    present = now();
  }
  issue(d, t, {.at = std::isinf(ready) ? present : ready, .cost = cost, .meeting = std::move(meeting)});
}

static void wait_until(double t, const char* why) {
  if (sync_callback) sync_callback(why);
  sleep_until(t);
}

static void wait_for(const MomentOf& moment, const char* why) {
  if (sync_callback) sync_callback(why);
  sleep_until(time_of(moment));
}

/* The end of what the host has issued on a stream. */
static double tail_of(int index, StreamId stream) { return time_of(mark(index, stream)); }

static double end_of(int index) {
  std::vector<MomentOf> moments;
  {
    std::lock_guard<std::recursive_mutex> hold(lock);
    std::vector<StreamId> streams;
    for (auto& [id, t] : device(index).streams) streams.push_back(id);
    for (StreamId stream : streams) moments.push_back(mark(index, stream));
  }
  double end = 0;
  for (const MomentOf& moment : moments) end = std::max(end, time_of(moment));
  return end;
}

static void wait_for_stream(int index, StreamId stream, const char* why) {
  refuse_in_capture(is_capturing(index, stream));
  require_sound(device(index));
  wait_for(mark(index, stream), why);
  require_sound(device(index));
}

/* For an operator that will wait for its result. */
static void refuse_to_wait(int index) { if (is_capturing(index, stream_of(index))) refuse_in_capture(true); }

static void wait_for_device(int index) {
  refuse_in_capture(capture && capture->graph->index == index);
  require_sound(device(index));
  wait_until(end_of(index), "device");
  require_sound(device(index));
}

struct Event_ {
  int index;  // the device of the stream that recorded it first
  MomentOf moment;
  uint64_t captured_by = 0;  // the capture to which the last record belongs; `moment` is then a time of that graph
};

struct Guard final : public impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device d) const override {
    Device before = getDevice();
    if (d.index() >= 0) present_device = d.index();
    return before;
  }
  Device getDevice() const override { return Device(DeviceType::CUDA, present_device); }
  void setDevice(Device d) const override {
    require_usable();
    if (d.index() >= 0) present_device = d.index();
  }
  void uncheckedSetDevice(Device d) const noexcept override { if (d.index() >= 0) present_device = d.index(); }
  static int index_of(Device d) { return d.has_index() ? d.index() : present_device; }
  Stream getStream(Device d) const override { return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index_of(d)), stream_of(index_of(d))); }
  Stream getDefaultStream(Device d) const override { return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, index_of(d))); }
  Stream getStreamFromGlobalPool(Device d, bool) const override { return getNewStream(d, 0); }
  Stream getNewStream(Device d, int) const override {
    static std::atomic<StreamId> made{0};
    return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index_of(d)), ++made);
  }
  Stream exchangeStream(Stream s) const override {
    int index = index_of(s.device());
    StreamId before = std::exchange(current_stream[index & 7], s.id());
    return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index), before);
  }
  void* getStreamNativeHandle(const Stream s) const override { return (void*)(intptr_t)s.id(); }
  DeviceIndex deviceCount() const noexcept override { initialise(); return devices.size(); }
  void record(void** event, const Stream& s, const DeviceIndex, const EventFlag) const override {
    require_sound(device(s.device_index()));
    if (!*event) *event = new Event_{s.device_index()};
    Event_& e = *(Event_*)*event;
    TORCH_CHECK(e.index == s.device_index(), "Event device ", e.index, " does not match recording stream's device ", (int)s.device_index(), ".");
    std::lock_guard<std::recursive_mutex> hold(lock);
    bool captured = is_capturing(e.index, s.id());
    e.captured_by = captured ? capture->id : 0;
    e.moment = captured ? std::make_shared<Moment>(capture->tails[s.id()], true) : mark(e.index, s.id());
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    if (event && in_bad_fork) die_in_destructor("a CUDA event that has been recorded");
    delete (Event_*)event;
  }
  void block(void* event, const Stream& s) const override {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Device_& d = device(s.device_index());
    require_sound(d);
    if (!event) return;
    Event_& e = *(Event_*)event;
    if (e.captured_by) { /* the stream takes part in the capture from now on */
      TORCH_CHECK(capture && capture->id == e.captured_by, CAPTURED_EVENT);
      double& within = capture->tails[s.id()];
      within = std::max(within, e.moment->t);
    } else if (!is_capturing(s.device_index(), s.id())) {
      issue(d, d.streams[s.id()], {.at = 0, .awaited = e.moment});
    }
  }
  static constexpr const char* CAPTURED_EVENT = "CUDA error: operation not permitted on an event last recorded in a capturing stream (simulated)";
  static const Event_& recorded(void* event) {
    require_usable();
    const Event_& e = *(Event_*)event;
    require_sound(device(e.index));
    refuse_in_capture(capture && e.captured_by == capture->id);
    TORCH_CHECK(!e.captured_by, CAPTURED_EVENT);
    return e;
  }
  bool isStreamCapturing(const Stream& s) const override { return is_capturing(s.device_index(), s.id()); }
  bool queryEvent(void* event) const override { return !event || passed(recorded(event).moment); }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    wait_for(recorded(event).moment, "event");
    recorded(event);
  }
  double elapsedTime(void* a, void* b, const DeviceIndex) const override {
    for (void* event : {a, b}) TORCH_CHECK(passed(recorded(event).moment), "CUDA error: device not ready (simulated)");
    return (recorded(b).moment->t - recorded(a).moment->t) * 1e3;
  }
  bool queryStream(const Stream& s) const override {
    refuse_in_capture(is_capturing(s.device_index(), s.id()));
    require_sound(device(s.device_index()));
    return passed(mark(s.device_index(), s.id()));
  }
  void synchronizeStream(const Stream& s) const override { wait_for_stream(s.device_index(), s.id(), "stream"); }
  void synchronizeDevice(const DeviceIndex i) const override { wait_for_device(i); }
};
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, Guard) }

/* --- storages ----------------------------------------------------------------------------------------------------------- */

struct Held {
  int index;
  Block* block;
  Storage values;  // with values: the host memory that holds them
  std::set<Graph*> readers;
};

static void drop(void* context);

/* A kernel in a capture reads or writes `t`. */
static void keep_address(const at::Tensor& t) {
  if (!capture || !t.defined() || !t.is_cuda() || !t.has_storage()) return;
  const DataPtr& data = t.storage().data_ptr();
  Held* held = (Held*)data.get_context();
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (!held || data.get_deleter() != &drop || !is_capturing(held->index, stream_of(held->index))) return;
  if (held->block->pool == &devices[held->index]->cache.of_graphs[capture->graph->pool]) return;
  capture->graph->reads.insert(held);
  held->readers.insert(capture->graph);
}

static void forget_addresses(Graph* graph) {
  for (Held* held : graph->reads) held->readers.erase(graph);
}

static void drop(void* context) {
  Held* held = (Held*)context;
  if (!held) return;
  {
    std::lock_guard<std::recursive_mutex> guard(lock);
    for (Graph* graph : held->readers) graph->freed = true, graph->reads.erase(held);
    devices[held->index]->cache.give_back(held->block);
  }
  delete held;
}

/* cudaMalloc and cudaFree take time of the host; cudaFree waits for the device first. The lock must not be held. */
constexpr double MALLOC_S = 1.5e-4, FREE_S = 1.5e-4;
static void pay(int index) {
  Cache& cache = devices[index]->cache;
  if (!cache.mallocs && !cache.frees) return;
  int mallocs = std::exchange(cache.mallocs, 0), frees = std::exchange(cache.frees, 0);
  if (frees) wait_until(end_of(index), "cudaFree");
  sleep_until(now() + MALLOC_S * mallocs + FREE_S * frees);
}

static DataPtr hold_bytes(int index, size_t n, Storage values) {
  Device_& d = device(index);
  std::unique_lock<std::recursive_mutex> guard(lock);
  Pool* own = capture && is_capturing(index, stream_of(index)) ? &d.cache.of_graphs[capture->graph->pool] : nullptr;
  Block* block = d.cache.allocate(n, own);
  void* data = values ? values.mutable_data() : (void*)block->address;
  if (!data) data = (void*)block->address;
  Held* held = new Held{index, block, std::move(values)};
  guard.unlock();
  if (!own) pay(index);
  return DataPtr(data, held, &drop, Device(DeviceType::CUDA, index));
}

/* Without values, a small tensor still keeps what is copied to it: DistributedDataParallel sends the order of its buckets from card to card. */
constexpr size_t KEPT_BYTES = 1 << 16;

static bool keeps_copies(const at::Tensor& t) {
  const DataPtr& data = t.storage().data_ptr();
  return !t.is_cuda() || (data.get_deleter() == &drop && data.get_context() && ((Held*)data.get_context())->values);
}

struct CardAllocator final : public Allocator {
  DataPtr allocate(size_t n) override {
    if (!n) return DataPtr(nullptr, Device(DeviceType::CUDA, present_device));
    Storage values;
    if (!with_values && n <= KEPT_BYTES) {
      values = Storage(Storage::use_byte_size_t(), n, GetCPUAllocator(), false);
      memset(values.mutable_data(), 0, n);
    }
    if (with_values && n < cards[device(present_device).cache.card].memory) values = Storage(Storage::use_byte_size_t(), n, GetCPUAllocator(), false);
    return hold_bytes(present_device, n, std::move(values));
  }
  DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t n) const override { if (with_values) memcpy(to, from, n); }
};
static CardAllocator card_allocator;

static bool any_broken() {
  for (size_t i = 0; i < devices.size(); i++)
    if (is_broken(i)) return true;
  return false;
}

struct PinnedBlock {
  size_t size;
  bool used = false;  // by a stream, through a copy that does not wait; torch then records an event on that stream when the block is freed
};
static std::map<uintptr_t, PinnedBlock> pinned;  // by address
struct PinnedAllocator final : public Allocator {
  DataPtr allocate(size_t n) override {
    require_usable();
    refuse_in_capture(false);
    bool any = false;
    for (size_t i = 0; i < devices.size(); i++) any |= has_context(i), require_sound(*devices[i]);
    if (n && !any) device(present_device);  // pinned memory belongs to a context; torch takes one that exists
    void* p = nullptr;
    if (n && posix_memalign(&p, 64, n)) throw std::bad_alloc();
    std::lock_guard<std::mutex> guard(pinned_lock);
    if (p) pinned[(uintptr_t)p] = {n};
    return DataPtr(p, p, &forget, Device(DeviceType::CPU));
  }
  static void forget(void* p) {
    if (!p) return;
    {
      std::lock_guard<std::mutex> guard(pinned_lock);
      auto at = pinned.find((uintptr_t)p);
      if (at != pinned.end()) {
        if (at->second.used && in_bad_fork) die_in_destructor("pinned host memory that a stream has used");
        if (at->second.used && any_broken()) { /* torch records an event there: the exception leaves a destructor */
          fprintf(stderr, "terminate called after throwing an instance of 'c10::AcceleratorError'\n");
          abort();
        }
        pinned.erase(at);
      }
    }
    ::free(p);
  }
  DeleterFnPtr raw_deleter() const override { return &forget; }
  void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); }
  /* Whether `p` lies in pinned memory; `by_a_stream` notes that a stream uses the block. */
  static bool holds(const void* p, bool by_a_stream = false) {
    std::lock_guard<std::mutex> guard(pinned_lock);
    auto at = pinned.upper_bound((uintptr_t)p);
    if (at == pinned.begin()) return false;
    --at;
    if ((uintptr_t)p >= at->first + std::max<uintptr_t>(1, at->second.size)) return false;
    at->second.used |= by_a_stream;
    return true;
  }
};
static PinnedAllocator pinned_allocator;

/* --- random numbers: a CPU generator that says cuda ------------------------------------------------------------------------- */

struct SimGenerator final : public GeneratorImpl {
  std::shared_ptr<at::CPUGeneratorImpl> shared;
  at::Generator inner;
  explicit SimGenerator(int index, at::Generator made) : GeneratorImpl(Device(DeviceType::CUDA, index), DispatchKeySet(DispatchKey::CUDA)), inner(std::move(made)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.unsafeGetGeneratorImpl()->seed(); }
  void set_state(const TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  intrusive_ptr<TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override { return new SimGenerator(device_.index(), inner.clone()); }
};

static at::Generator new_generator(int index) { return at::make_generator<SimGenerator>(index, at::detail::createCPUGenerator()); }

static at::Generator& default_generator(int index) {
  static std::vector<at::Generator> made(16);
  at::Generator& found = made[index < 0 ? present_device : index];
  if (!found.defined()) found = new_generator(index < 0 ? present_device : index);
  return found;
}

struct CUDAHooks final : public at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override { require_usable(), initialise(); }
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return !visible_cards().empty(); }
  bool hasPrimaryContext(DeviceIndex index) const override { return has_context(index); }
  DeviceIndex deviceCount() const override { initialise(); return devices.size(); }
  DeviceIndex getCurrentDevice() const override { return present_device; }
  void setCurrentDevice(DeviceIndex index) const override { present_device = index; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return std::exchange(present_device, (int)index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return index < 0 ? present_device : exchangeDevice(index); }
  DeviceIndex current_device() const override { return present_device; }
  int getNumGPUs() const override { return deviceCount(); }
  bool isPinnedPtr(const void* p) const override { return !in_bad_fork && PinnedAllocator::holds(p); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  Allocator* getCUDADeviceAllocator() const override { return &card_allocator; }
  Device getDeviceFromPtr(void*) const override { return Device(DeviceType::CUDA, present_device); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  /* The first one asked for is the default: so Python gets hold of it (runtime.py). */
  at::Generator getNewGenerator(DeviceIndex index) const override {
    static std::set<int> given;
    int at = index < 0 ? present_device : index;
    return given.insert(at).second ? default_generator(at) : new_generator(at);
  }
  void deviceSynchronize(DeviceIndex index) const override { wait_for_device(index); }
};
namespace at { REGISTER_CUDA_HOOKS(CUDAHooks) }

/* --- operators ------------------------------------------------------------------------------------------------------------ */

static DispatchKeySet host_keys() { return DispatchKeySet(with_values ? DispatchKey::CPU : DispatchKey::Meta); }

/* One operator call: its CUDA tensors, their stand-ins on the host, and back. */
struct Call {
  struct Pair { at::Tensor original, stand_in; void* data; };
  std::vector<Pair> pairs;
  std::vector<at::Tensor> inputs;
  std::unordered_map<StorageImpl*, Storage> wrapped;
  int index = -1;

  at::Tensor stand_in(const at::Tensor& t) {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      inputs.push_back(t);
      return with_values || t.dim() == 0 || t.is_meta() ? t : plain(t.storage().nbytes(), nullptr, t);
    }
    if (index < 0) index = t.device().index();
    inputs.push_back(t);
    void* data = t.storage().mutable_data();
    for (Pair& pair : pairs)
      if (pair.original.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return pair.stand_in;
    at::Tensor made = plain(t.storage().nbytes(), data, t);
    pairs.push_back({t, made, data});
    return made;
  }

  static at::Tensor plain(size_t bytes, void* data, const at::Tensor& like) {
    Device where(with_values ? DeviceType::CPU : DeviceType::Meta);
    Storage storage(Storage::use_byte_size_t(), bytes, DataPtr(data, where), GetAllocator(where.type()), true);
    at::Tensor made = at::detail::make_tensor<TensorImpl>(std::move(storage), host_keys(), like.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (like.is_conj()) made.unsafeGetTensorImpl()->_set_conj(true);
    return made;
  }

  Storage on_device(const Storage& host) {
    StorageImpl* key = host.unsafeGetStorageImpl();
    for (Pair& pair : pairs)
      if (pair.stand_in.storage().unsafeGetStorageImpl() == key && host.data() == pair.data) return pair.original.storage();
    auto found = wrapped.find(key);
    if (found != wrapped.end()) return found->second;
    size_t n = host.nbytes();
    DataPtr data = n ? hold_bytes(index, n, with_values ? host : Storage()) : DataPtr(nullptr, Device(DeviceType::CUDA, index));
    Storage made(Storage::use_byte_size_t(), n, std::move(data), &card_allocator, true);
    wrapped.emplace(key, made);
    return made;
  }

  /* After an operator that may have changed the shape or the memory of an argument. */
  void write_back(Pair& pair) {
    TensorImpl *to = pair.original.unsafeGetTensorImpl(), *from = pair.stand_in.unsafeGetTensorImpl();
    bool moved = pair.stand_in.storage().data() != pair.data || (!with_values && pair.stand_in.storage().nbytes() > pair.original.storage().nbytes());
    if (moved && pair.stand_in.storage().nbytes()) to->set_storage_keep_dtype(on_device(pair.stand_in.storage()));
    if (to->sizes() != from->sizes() || to->strides() != from->strides() || to->storage_offset() != from->storage_offset())
      to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  }

  at::Tensor result(const at::Tensor& t) {
    if (!t.defined()) return t;
    for (Pair& pair : pairs)
      if (pair.stand_in.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return pair.original;
    at::Tensor made;
    for (Pair& pair : pairs) /* in inference mode a view of an ordinary tensor is an ordinary tensor */
      if (!made.defined() && pair.stand_in.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl())
        made = at::detail::make_tensor<TensorImpl>(TensorImpl::VIEW, on_device(t.storage()), pair.original.key_set(), t.dtype());
    if (!made.defined()) made = at::detail::make_tensor<TensorImpl>(on_device(t.storage()), DispatchKeySet(DispatchKey::CUDA), t.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    return made;
  }

  bool shares(const at::Tensor& t) const { /* with an input: a view or a change in place */
    for (const at::Tensor& input : inputs)
      if (t.defined() && input.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) return true;
    return false;
  }
};

static double product(const at::Tensor& a, const at::Tensor& b) { return 2.0 * a.numel() * b.size(-1); }

/* Multiply-adds count as two. Only matrix products, convolutions and attention count: the others are bound by memory. */
static double flops_of(const std::string& name, const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out) {
  if (name == "aten::mm" || name == "aten::bmm") return product(in[0], in[1]);
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::_addmm_activation") return product(in[1], in[2]);
  if (name == "aten::_slow_conv2d_forward" || name == "aten::slow_conv2d_forward")
    return 2.0 * out[0].numel() * (in[1].numel() / std::max<int64_t>(1, in[1].size(0)));
  if (name == "aten::_slow_conv2d_backward") return 4.0 * in[0].numel() * (in[2].numel() / std::max<int64_t>(1, in[2].size(0)));
  return 0;
}

/* Whether torch lets CUDA use TF32 for this product: the rules of torch for the old and the new settings (Context::float32Precision). */
static bool uses_tf32(at::Float32Op op) {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32;
}

struct Peak { double flops; bool tensor_cores; };

static Peak peak_of(const Card& c, ScalarType type, at::Float32Op op) {
  switch (type) {
    case ScalarType::BFloat16: return {c.bf16, true};
    case ScalarType::Half: return {c.fp16, true};
    case ScalarType::Double: return {c.fp64, false};
    case ScalarType::Char: return {c.int8, true};
    default: return uses_tf32(op) ? Peak{c.tf32, true} : Peak{c.fp32, false};
  }
}

static double bytes_of(const at::Tensor& t) { return t.defined() ? (double)t.numel() * t.element_size() : 0.0; }

/* A kernel of the shortest duration fills the fewer SMs the less work it has; a long one keeps all of them busy but for its ends. */
constexpr double FULL_SHARE = 0.95, ONE_SM_SHARE = 0.01;

/* Of the SMs, as a share of the highest: the driver (machine.py) lowers it where the power cap demands. */
static double clock_of(int card) {
  double clock = shared ? shared->clocks[card] : 0;
  return clock > 0 ? clock : 1;
}

static void charge(int index, double flops, double bytes, ScalarType type, at::Float32Op op = at::Float32Op::MATMUL) {
  const Card& c = cards[device(index).cache.card];
  double memory = bytes / c.bandwidth, compute = 0;
  Cost cost;
  if (flops > 0) {
    Peak peak = peak_of(c, type, op);
    compute = flops / (peak.flops * clock_of(device(index).cache.card));
    if (peak.tensor_cores) cost.tensor_s = slowdown * compute;
  }
  double work = std::max(compute / gemm_share, memory / memory_share), seconds = std::max(kernel_s, work);
  cost.seconds = slowdown * seconds, cost.flops = flops, cost.bytes = bytes, cost.dram_s = slowdown * memory;
  cost.sm_s = cost.seconds * std::min(FULL_SHARE, std::max(ONE_SM_SHARE, work / seconds));
  launch(index, stream_of(index), cost);
}

/* A copy between the cards or with the host. */
static Cost of_copy(double seconds, double h2d = 0, double d2h = 0) {
  Cost cost;
  cost.seconds = slowdown * seconds, cost.h2d = h2d, cost.d2h = d2h, cost.copies = true;
  return cost;
}

static void charge(Call& call, const std::string& name, const std::vector<at::Tensor>& results, double changed = 0) {
  double bytes = changed;
  for (auto& t : call.inputs) if (t.is_cuda()) bytes += bytes_of(t);
  for (auto& t : results) if (!call.shares(t)) bytes += bytes_of(t);
  ScalarType type = ScalarType::Float;
  for (auto& t : call.inputs) if (t.is_floating_point()) { type = t.scalar_type(); break; }
  for (auto& t : call.inputs) keep_address(t);
  bool is_convolution = name.find("conv") != std::string::npos;
  charge(call.index, flops_of(name, call.inputs, results), bytes, type, is_convolution ? at::Float32Op::CONV : at::Float32Op::MATMUL);
}

static const std::unordered_set<std::string> WAITING = {"aten::nonzero", "aten::equal", "aten::_unique2", "aten::unique_dim", "aten::masked_select",
                                                        "aten::bincount", "aten::unique_consecutive", "aten::repeat_interleave"};
static const std::unordered_set<std::string> RESHAPING = {"aten::resize_", "aten::t_", "aten::transpose_", "aten::squeeze_", "aten::unsqueeze_",
                                                          "aten::as_strided_", "aten::set_", "aten::swapaxes_", "aten::resize_as_"};

/* Shapes of results, by operator and arguments: a step repeats its shapes, and the meta device takes up to 1 ms for them (much of it is Python). */
struct Shape {
  ScalarType type;
  std::vector<int64_t> sizes, strides;
  int64_t bytes;
  bool defined;
};
static std::unordered_map<std::string, std::unique_ptr<const std::vector<Shape>>> known_shapes;  // entries stay

template <typename T> static void write_key(std::string& key, const T& value) { key.append((const char*)&value, sizeof value); }

static bool write_key(std::string& key, const IValue& value) {
  key += (char)('a' + (value.isTensor() ? 0 : value.isInt() ? 1 : value.isDouble() ? 2 : value.isBool() ? 3 : value.isNone() ? 4 : value.isIntList() ? 5
                       : value.isTensorList() ? 6 : value.isBoolList() ? 7 : value.isDevice() ? 8 : value.isString() ? 9 : 10));
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (!t.defined()) return true;
    if (t.layout() != Layout::Strided) return false;
    write_key(key, t.scalar_type()), write_key(key, t.dim()), write_key(key, t.unsafeGetTensorImpl()->is_wrapped_number());
    for (int64_t n : t.sizes()) write_key(key, n);
    for (int64_t n : t.strides()) write_key(key, n);
    return true;
  }
  if (value.isInt()) write_key(key, value.toInt());
  else if (value.isDouble()) write_key(key, value.toDouble());
  else if (value.isBool()) write_key(key, value.toBool());
  else if (value.isString()) key += value.toStringRef();
  else if (value.isIntList()) for (int64_t n : value.toIntVector()) write_key(key, n);
  else if (value.isBoolList()) for (bool b : value.toBoolList()) write_key(key, b);
  else if (value.isTensorList()) {
    for (const IValue& t : value.toListRef()) if (!write_key(key, t)) return false;
  } else return value.isNone() || value.isDevice();
  return true;
}

static std::string key_of(const std::string& id, const torch::jit::Stack& stack, size_t first) {
  std::string key;
  key.reserve(512);
  key = id;
  for (size_t i = first; i < stack.size(); i++)
    if (!write_key(key, stack[i])) return "";
  return key;
}

static at::Tensor of_shape(int index, const Shape& shape) {
  if (!shape.defined) return at::Tensor();
  DataPtr data = shape.bytes ? hold_bytes(index, shape.bytes, Storage()) : DataPtr(nullptr, Device(DeviceType::CUDA, index));
  Storage storage(Storage::use_byte_size_t(), shape.bytes, std::move(data), &card_allocator, true);
  at::Tensor made = at::detail::make_tensor<TensorImpl>(std::move(storage), DispatchKeySet(DispatchKey::CUDA), scalarTypeToTypeMeta(shape.type));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides, 0);
  return made;
}

/* The shapes of fresh, separate results; nothing where a result shares memory. */
static void remember(const std::string& key, const Call& call, const std::vector<at::Tensor>& results) {
  std::vector<Shape> shapes;
  std::set<const StorageImpl*> seen;
  for (const at::Tensor& t : results) {
    if (!t.defined()) { shapes.push_back({ScalarType::Float, {}, {}, 0, false}); continue; }
    if (call.shares(t) || t.storage_offset() || !seen.insert(t.storage().unsafeGetStorageImpl()).second) return;
    shapes.push_back({t.scalar_type(), t.sizes().vec(), t.strides().vec(), (int64_t)t.storage().nbytes(), true});
  }
  std::lock_guard<std::mutex> hold(shapes_lock);
  if (known_shapes.size() < 100000 && !known_shapes.count(key)) known_shapes[key] = std::make_unique<const std::vector<Shape>>(std::move(shapes));
}

static bool aliases(const Argument& r) { return r.alias_info() && (r.alias_info()->isWrite() || !r.alias_info()->beforeSets().empty()); }

/* What the schema of an operator says, read once. */
struct Operator {
  std::string name;
  std::string id;                // begins the keys of its shapes
  size_t count, returned;
  bool reshapes, in_place;       // in_place: every result is an argument that it writes
  bool plain_results;            // every result is a new tensor
  bool waits, is_index, lists_optional;
  std::vector<size_t> writes, writes_out;  // arguments; the latter are "out" arguments
  std::vector<size_t> results;   // of an operator in place: the argument that each result is

  explicit Operator(const FunctionSchema& schema) : name(schema.name()), id(name + "." + schema.overload_name()) {
    count = schema.arguments().size(), returned = schema.returns().size();
    reshapes = RESHAPING.count(name), waits = WAITING.count(name), is_index = name == "aten::index", lists_optional = false;
    in_place = returned > 0 || count > 0, plain_results = returned > 0;
    for (const Argument& r : schema.returns()) {
      in_place = in_place && r.alias_info() && r.alias_info()->isWrite();
      plain_results = plain_results && r.type()->kind() == TypeKind::TensorType && !aliases(r);
    }
    for (size_t i = 0; i < count; i++) {
      const Argument& a = schema.arguments()[i];
      if (const AliasInfo* alias = a.alias_info(); alias && alias->isWrite()) (a.kwarg_only() ? writes_out : writes).push_back(i);
      lists_optional |= a.type()->str().find("Tensor?[]") != std::string::npos;
    }
    for (const Argument& r : schema.returns())
      for (size_t i = 0; i < count; i++)
        if (const AliasInfo* a = schema.arguments()[i].alias_info(); r.alias_info() && a && a->isWrite() && a->beforeSets() == r.alias_info()->beforeSets())
          results.push_back(i);
  }

  static const Operator& of(const OperatorHandle& handle) {
    thread_local std::unordered_map<const FunctionSchema*, std::unique_ptr<Operator>> known;
    std::unique_ptr<Operator>& found = known[&handle.schema()];
    if (!found) found = std::make_unique<Operator>(handle.schema());
    return *found;
  }

  /* Bytes that it writes back to where it reads them. */
  double changed_bytes(const IValue* values) const {
    double bytes = 0;
    for (size_t i : writes) {
      if (values[i].isTensor()) bytes += bytes_of(values[i].toTensor());
      else if (values[i].isTensorList()) for (const IValue& t : values[i].toListRef()) bytes += bytes_of(t.toTensor());
    }
    return bytes;
  }

  /* Whether each tensor that it writes has its size already. Operators with "out" may be given empty tensors. */
  bool has_room(const IValue* values) const {
    for (size_t i : writes_out)
      if (values[i].isTensor() && !values[i].toTensor().numel()) return false;
    return true;
  }
};

/* What a kernel with a failed assertion leaves behind: its results, with whatever is in them. Raises what the host finds: shapes that do not fit. */
static void fail_in_kernel(const OperatorHandle& handle, const Operator& op, const std::vector<IValue>& arguments, Call& call, torch::jit::Stack* stack,
                           const std::string& why) {
  auto on_meta = [](const at::Tensor& t) { return t.defined() ? at::empty_strided(t.sizes(), t.strides(), t.options().device(DeviceType::Meta)) : t; };
  if (op.plain_results) {
    for (IValue value : arguments) {
      if (value.isTensor()) value = on_meta(value.toTensor());
      else if (value.isDevice()) value = Device(DeviceType::Meta);
      stack->push_back(value);
    }
    handle.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), stack);
    for (size_t i = stack->size() - op.returned; i < stack->size(); i++)
      if (const at::Tensor t = (*stack)[i].toTensor(); t.defined())
        (*stack)[i] = at::empty_strided(t.sizes(), t.strides(), t.options().device(DeviceType::CPU)).zero_();
  }
  for (size_t i : op.results) stack->push_back(call.stand_in(arguments[i].toTensor()));
  fprintf(stderr, "%s: block: [0,0,0], thread: [0,0,0] Assertion `%s` failed.\n", op.name.c_str(), why.c_str());
}

/* Without values most calls need no stand-ins: an operator in place changes nothing, and the shapes of new tensors are known from an earlier call.
 * Returns the key of the shapes where they are not known yet, and whether the call is done. */
static bool call_without_values(const Operator& op, torch::jit::Stack* stack, size_t first, std::string& key) {
  bool changes = op.in_place && !op.reshapes && op.has_room(&(*stack)[first]);
  bool makes = op.plain_results && !op.waits && !op.is_index && !op.lists_optional;
  if (!changes && !makes) return false;
  const std::vector<Shape>* shapes = nullptr;
  if (!changes) {
    key = key_of(op.id, *stack, first);
    if (key.empty()) return false;
    std::lock_guard<std::mutex> hold(shapes_lock);
    auto found = known_shapes.find(key);
    if (found == known_shapes.end()) return false;
    shapes = found->second.get();
  }
  Call call;
  call.inputs.reserve(op.count);
  auto take = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    if (call.index < 0 && t.is_cuda()) call.index = t.device().index();
    call.inputs.push_back(t);
  };
  for (size_t i = first; i < stack->size(); i++) {
    const IValue& value = (*stack)[i];
    if (value.isTensor()) take(value.toTensor());
    else if (value.isTensorList()) for (const IValue& t : value.toListRef()) take(t.toTensor());
    else if (value.isDevice() && call.index < 0 && value.toDevice().has_index()) call.index = value.toDevice().index();
  }
  if (call.index < 0) call.index = present_device;
  if (changes) {
    charge(call, op.name, {}, op.changed_bytes(&(*stack)[first]));
    torch::jit::Stack results;
    for (size_t i : op.results) results.push_back((*stack)[first + i]);
    torch::jit::drop(*stack, op.count);
    for (IValue& result : results) stack->push_back(std::move(result));
    return true;
  }
  std::vector<at::Tensor> results;
  results.reserve(shapes->size());
  for (const Shape& shape : *shapes) results.push_back(of_shape(call.index, shape));
  charge(call, op.name, results);
  torch::jit::drop(*stack, op.count);
  for (at::Tensor& result : results) stack->push_back(std::move(result));
  return true;
}

/* How many elements a mask selects depends on values. Without values it is every second one. Returns whether the result is on the stack already: torch has no
 * shapes for it. Masks among indices become indices. */
static bool selects_without_values(const Operator& op, torch::jit::Stack* stack, size_t first) {
  auto selected = [](const at::Tensor& mask) { return std::max<int64_t>(1, mask.numel() / 2); };
  at::TensorOptions indices = at::TensorOptions().dtype(ScalarType::Long).device(DeviceType::Meta);
  if (op.name == "aten::nonzero" || op.name == "aten::masked_select") {
    at::Tensor self = (*stack)[first].toTensor();
    at::Tensor made = op.name == "aten::nonzero" ? at::empty({selected(self), self.dim()}, indices)
                                                 : at::empty({selected((*stack)[first + 1].toTensor())}, self.options());
    stack->resize(first);
    stack->push_back(made);
    return true;
  }
  if (!op.is_index) return false;
  List<std::optional<at::Tensor>> made;
  for (std::optional<at::Tensor> t : (*stack)[first + 1].toOptionalTensorList()) {
    if (!t.has_value() || !t->defined() || (t->scalar_type() != ScalarType::Bool && t->scalar_type() != ScalarType::Byte)) made.push_back(t);
    else for (int64_t n = 0; n < t->dim(); n++) made.push_back(at::empty({selected(*t)}, indices));
  }
  (*stack)[first + 1] = made;
  return false;
}

static void fallback(const OperatorHandle& handle, torch::jit::Stack* stack) {
  const Operator& op = Operator::of(handle);
  size_t first = stack->size() - op.count;
  std::string key;
  if (!with_values && call_without_values(op, stack, first, key)) return;
  Call call;
  std::vector<IValue> originals(stack->begin() + first, stack->end());
  for (size_t i = 0; i < op.count; i++) {
    IValue& value = (*stack)[first + i];
    if (value.isTensor()) {
      value = call.stand_in(value.toTensor());
    } else if (value.isTensorList()) {
      List<at::Tensor> made;
      for (const at::Tensor& t : value.toTensorVector()) made.push_back(call.stand_in(t));
      value = made;
    } else if (value.isOptionalTensorList()) {
      List<std::optional<at::Tensor>> made;
      for (std::optional<at::Tensor> t : value.toOptionalTensorList())
        made.push_back(t.has_value() ? std::optional<at::Tensor>(call.stand_in(*t)) : std::nullopt);
      value = made;
    } else if (value.isDevice()) {
      if (call.index < 0) call.index = value.toDevice().has_index() ? value.toDevice().index() : present_device;
      value = Device(with_values ? DeviceType::CPU : DeviceType::Meta);
    }
  }
  if (call.index < 0) call.index = present_device;
  for (size_t i = 0; with_values && i < op.count; i++) {
    IValue& value = (*stack)[first + i];
    if (handle.schema().arguments()[i].name() != "generator") continue;
    if (value.isGenerator() && value.toGenerator().device().is_cuda()) value = ((SimGenerator*)value.toGenerator().unsafeGetGeneratorImpl())->inner;
    else if (value.isNone()) value = ((SimGenerator*)default_generator(call.index).unsafeGetGeneratorImpl())->inner;
  }
  bool waits = op.waits || (op.is_index && std::any_of(call.inputs.begin() + 1, call.inputs.end(), [](const at::Tensor& t) {
    return t.scalar_type() == ScalarType::Bool || t.scalar_type() == ScalarType::Byte; }));
  if (waits) refuse_to_wait(call.index);
  bool fails = false, asserts = op.name == "aten::_assert_async";
  if (with_values && (op.plain_results || asserts || (op.in_place && op.has_room(originals.data())))) {
    try {
      handle.redispatchBoxed(host_keys(), stack);
    } catch (const c10::Error& error) { /* on a GPU a kernel finds it, later */
      if (!asserts && !dynamic_cast<const c10::IndexError*>(&error)) throw;
      stack->resize(first);
      fail_in_kernel(handle, op, originals, call, stack, error.what_without_backtrace());
      fails = true;
    }
  } else if (with_values || !selects_without_values(op, stack, first)) {
    handle.redispatchBoxed(host_keys(), stack);
  }
  size_t at = stack->size() - op.returned;
  for (auto& pair : std::vector<Call::Pair>(call.pairs)) call.write_back(pair);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < op.returned; i++) {
    IValue& value = (*stack)[at + i];
    if (value.isTensor()) {
      at::Tensor t = call.result(value.toTensor());
      results.push_back(t);
      value = t;
    } else if (value.isTensorList()) {
      List<at::Tensor> made;
      for (const at::Tensor& t : value.toTensorVector()) made.push_back(call.result(t)), results.push_back(made.get(made.size() - 1));
      value = made;
    }
  }
  bool is_view = !results.empty() && !op.in_place && std::all_of(results.begin(), results.end(), [&](const at::Tensor& t) { return call.shares(t); });
  if (is_view || op.reshapes) return;
  if (!key.empty()) remember(key, call, results);
  charge(call, op.name, results, op.changed_bytes(originals.data()));
  if (fails && !devices[call.index]->failing) devices[call.index]->failing = mark(call.index, stream_of(call.index));
  if (waits) wait_for_stream(call.index, stream_of(call.index), op.name.c_str());
}

static at::Tensor empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>, std::optional<Device> where, std::optional<bool>,
                        std::optional<MemoryFormat> format) {
  int before = present_device;
  if (where && where->has_index()) present_device = where->index();
  figures(present_device);
  at::Tensor made = at::detail::empty_generic(size, &card_allocator, DispatchKeySet(DispatchKey::CUDA), dtype.value_or(at::get_default_dtype_as_scalartype()), format);
  present_device = before;
  return made;
}

static at::Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype, std::optional<Layout>, std::optional<Device> where,
                                std::optional<bool>) {
  int before = present_device;
  if (where && where->has_index()) present_device = where->index();
  figures(present_device);
  at::Tensor made = at::detail::empty_strided_generic(size, stride, &card_allocator, DispatchKeySet(DispatchKey::CUDA), dtype.value_or(at::get_default_dtype_as_scalartype()));
  present_device = before;
  return made;
}

/* Copies between host and device wait unless they are non_blocking and the host's memory is pinned; small blocking-free copies from pageable
 * memory go through a staging buffer of the driver (CUDA programming guide: up to 64 KB to the device return at once). */
static at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const at::Tensor& on_gpu = self.is_cuda() ? self : source;
  const at::Tensor& on_host = self.is_cuda() ? source : self;
  int index = on_gpu.device().index();
  bool is_pinned = !on_host.is_cuda() && PinnedAllocator::holds(on_host.storage().data(), non_blocking);
  if (!on_host.is_cuda() && !is_pinned && is_capturing(index, stream_of(index))) refuse_in_capture(true);
  Call call;
  at::Tensor to = call.stand_in(self), from = call.stand_in(source);
  if (with_values) to.copy_(from);
  else if (keeps_copies(self) && keeps_copies(source) && self.is_contiguous() && source.is_contiguous() && self.scalar_type() == source.scalar_type() && self.numel() == source.numel())
    memcpy(self.mutable_data_ptr(), source.const_data_ptr(), self.nbytes());
  else if (!self.is_cuda()) self.zero_();
  double bytes = bytes_of(self);
  Device_& d = device(index);
  StreamId stream = stream_of(index);
  if (self.is_cuda() && source.is_cuda()) {
    if (self.device() == source.device()) charge(index, 0, bytes + bytes_of(source), ScalarType::Float);
    else launch(index, stream, of_copy(1e-5 + bytes / cards[d.cache.card].peer));
    return self;
  }
  double rate = cards[d.cache.card].link * (is_pinned ? 1.0 : 0.5); /* pageable memory is copied twice */
  launch(index, stream, of_copy(5e-6 + bytes / rate, self.is_cuda() ? bytes : 0, self.is_cuda() ? 0 : bytes));
  bool returns_at_once = non_blocking && (is_pinned || (self.is_cuda() && bytes <= 65536));
  if (!returns_at_once) wait_for_stream(index, stream, self.is_cuda() ? "copy to the device" : "copy to the host");
  return self;
}

static at::Scalar local_scalar(const at::Tensor& self) {
  int index = self.device().index();
  refuse_to_wait(index);
  launch(index, stream_of(index), of_copy(5e-6));
  wait_for_stream(index, stream_of(index), "item");
  if (!with_values) return at::isIntegralType(self.scalar_type(), true) ? at::Scalar((int64_t)0) : at::Scalar(0.0);
  Call call;
  return at::_local_scalar_dense(call.stand_in(self));
}

static void record_stream(at::Tensor&, Stream) {}

/* CUDA has fused attention for every floating type: the flash kernel for 16 bits (1), the memory-efficient kernel for fp32 (2). */
static int64_t sdp_choice(const at::Tensor& query, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>& mask, double, bool,
                          std::optional<double>, bool) {
  if (mask && mask->defined()) return 0;
  return query.scalar_type() == ScalarType::Float ? 2 : query.scalar_type() == ScalarType::Double ? 0 : 1;
}

static void charge_attention(Call& call, const at::Tensor& q, const at::Tensor& k, bool causal, double passes) {
  double bytes = 0;
  for (auto& t : call.inputs) bytes += bytes_of(t);
  charge(call.index, passes * 4.0 * q.numel() * k.size(-2) * (causal ? 0.5 : 1.0), bytes * 4 / 3, q.scalar_type());
}

/* A result of attention: (batch, heads, tokens, size), in memory by tokens first. */
static at::Tensor like(int index, const at::Tensor& q, int64_t tokens, int64_t size) {
  int64_t heads = q.size(1);
  return of_shape(index, {q.scalar_type(), {q.size(0), heads, tokens, size}, {tokens * heads * size, size, heads * size, 1},
                          q.size(0) * heads * tokens * size * (int64_t)q.element_size(), true});
}

static std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, std::optional<double> scale) {
  Call call;
  at::Tensor a = call.stand_in(q), b = call.stand_in(k), c = call.stand_in(v);
  if (!with_values) {
    charge_attention(call, q, k, causal, 1);
    return {like(call.index, q, q.size(2), q.size(3)), of_shape(call.index, {ScalarType::Float, {q.size(0), q.size(1), q.size(2)}, {q.size(1) * q.size(2), q.size(2), 1}, q.size(0) * q.size(1) * q.size(2) * 4, true})};
  }
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(a, b, c, 0.0, causal, std::nullopt, scale);
  charge_attention(call, q, k, causal, 1);
  return {call.result(out), call.result(lse)};
}

static std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                                         const at::Tensor& out, const at::Tensor& lse, bool causal, std::optional<double> scale) {
  Call call;
  at::Tensor g = call.stand_in(grad), a = call.stand_in(q), b = call.stand_in(k), c = call.stand_in(v), o = call.stand_in(out), l = call.stand_in(lse);
  if (!with_values) {
    charge_attention(call, q, k, causal, 2.5);
    return {like(call.index, q, q.size(2), q.size(3)), like(call.index, k, k.size(2), k.size(3)), like(call.index, v, v.size(2), v.size(3))};
  }
  auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(g, a, b, c, o, l, 0.0, causal, std::nullopt, scale);
  charge_attention(call, q, k, causal, 2.5);
  return {call.result(gq), call.result(gk), call.result(gv)};
}

using at::Tensor;
static std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> flash(const Tensor& q, const Tensor& k, const Tensor& v, double,
                                                                                              bool causal, bool, std::optional<double> scale) {
  auto [out, lse] = attention(q, k, v, causal, scale);
  return {out, lse, Tensor(), Tensor(), SymInt(q.size(-2)), SymInt(k.size(-2)), Tensor(), Tensor(), Tensor()};
}
static std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                                         const Tensor& lse, const Tensor&, const Tensor&, SymInt, SymInt, double, bool causal, const Tensor&,
                                                         const Tensor&, std::optional<double> scale) {
  return attention_backward(grad, q, k, v, out, lse, causal, scale);
}
static std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>&, bool, double,
                                                            bool causal, std::optional<double> scale) {
  auto [out, lse] = attention(q, k, v, causal, scale);
  return {out, lse, Tensor(), Tensor()};
}
static std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                                                                     const Tensor& out, const Tensor& lse, const Tensor&, const Tensor&, double,
                                                                     std::array<bool, 4>, bool causal, std::optional<double> scale) {
  auto [gq, gk, gv] = attention_backward(grad, q, k, v, out, lse, causal, scale);
  return {gq, gk, gv, Tensor()};
}

/* Convolution without cuDNN: the operators of torch's own slow kernels, charged as one kernel. */
static Tensor convolution(const Tensor& self, const Tensor& weight, IntArrayRef kernel, const std::optional<Tensor>& bias, IntArrayRef stride, IntArrayRef padding) {
  Call call;
  Tensor a = call.stand_in(self), w = call.stand_in(weight), b = bias && bias->defined() ? call.stand_in(*bias) : Tensor(), out;
  if (with_values) {
    out = call.result(at::_slow_conv2d_forward(a, w, kernel, b.defined() ? std::optional<Tensor>(b) : std::nullopt, stride, padding));
  } else {
    int64_t n = self.size(0), c = weight.size(0), y = (self.size(2) + 2 * padding[0] - kernel[0]) / stride[0] + 1, x = (self.size(3) + 2 * padding[1] - kernel[1]) / stride[1] + 1;
    out = of_shape(call.index, {self.scalar_type(), {n, c, y, x}, {c * y * x, y * x, x, 1}, n * c * y * x * (int64_t)self.element_size(), true});
  }
  charge(call, "aten::_slow_conv2d_forward", {out});
  return out;
}
static std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& self, const Tensor& weight, IntArrayRef kernel, IntArrayRef stride,
                                                               IntArrayRef padding, std::array<bool, 3> mask) {
  Call call;
  Tensor g = call.stand_in(grad), a = call.stand_in(self), w = call.stand_in(weight), gi, gw, gb;
  if (with_values) {
    auto [i, k, b] = at::_slow_conv2d_backward(g, a, w, kernel, stride, padding, mask);
    gi = call.result(i), gw = call.result(k), gb = call.result(b);
  } else {
    auto same = [&](const Tensor& t) {
      return of_shape(call.index, {t.scalar_type(), t.sizes().vec(), t.contiguous().strides().vec(), t.numel() * (int64_t)t.element_size(), true}); };
    if (mask[0]) gi = same(self);
    if (mask[1]) gw = same(weight);
    if (mask[2]) gb = of_shape(call.index, {grad.scalar_type(), {grad.size(1)}, {1}, grad.size(1) * (int64_t)grad.element_size(), true});
  }
  charge(call, "aten::_slow_conv2d_backward", {gi, gw, gb});
  return {gi, gw, gb};
}

static Tensor& set_storage(Tensor& self, Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  std::vector<int64_t> steps(stride.begin(), stride.end());
  if (stride.size() != size.size()) {
    steps.assign(size.size(), 1);
    for (int64_t i = (int64_t)size.size() - 2; i >= 0; i--) steps[i] = steps[i + 1] * std::max<int64_t>(1, size[i + 1]);
  }
  impl->set_sizes_and_strides(size, steps, offset);
  return self;
}
static Tensor& set_tensor(Tensor& self, const Tensor& source) { return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides()); }
static Tensor& set_whole(Tensor& self, Storage source) {
  int64_t n = source.nbytes() / self.element_size();
  return set_storage(self, std::move(source), 0, {n}, {1});
}
static Tensor& set_empty(Tensor& self) {
  return set_storage(self, Storage(Storage::use_byte_size_t(), 0, DataPtr(nullptr, self.device()), &card_allocator, true), 0, {0}, {1});
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_scaled_dot_product_flash_attention", TORCH_FN(flash));
  m.impl("_scaled_dot_product_flash_attention_backward", TORCH_FN(flash_backward));
  m.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient));
  m.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_backward));
  m.impl("_slow_conv2d_forward", TORCH_FN(convolution));
  m.impl("_slow_conv2d_backward.output_mask", TORCH_FN(convolution_backward));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_.source_Storage", TORCH_FN(set_whole));
  m.impl("set_", TORCH_FN(set_empty));
  /* On CUDA each of these is one kernel; torch's generic versions would launch one per tensor. */
  std::vector<std::string> fused = {"native_layer_norm", "native_layer_norm_backward"};
  for (const OperatorName& name : Dispatcher::singleton().getAllOpNames())
    if (name.name.rfind("aten::_foreach_", 0) == 0)
      fused.push_back(name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name));
  for (const std::string& name : fused) m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

static auto at_load = [] {
  SetAllocator(DeviceType::CUDA, &card_allocator);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&sdp_choice);
  return 0;
}();

/* --- collectives between processes: what NCCL does, on the clocks of the cards ------------------------------------------------ */

/* Gloo on the host carries the values, if there are any (values cpu); each host then waits until all processes have issued the operation. Without values the
 * hosts run ahead, as NCCL's do: the cards meet (see Meeting). The operation runs on a stream of its own, at the rate of the link between the cards. */
using c10d::ReduceOp;
using Group = intrusive_ptr<c10d::ProcessGroup>;
using Operation = intrusive_ptr<ReduceOp>;
using Work = intrusive_ptr<c10d::Work>;
constexpr StreamId COLLECTIVES = 999999;
constexpr double COLLECTIVE_S = 1e-5, COLLECTIVE_SMS = 0.15;  // share of the SMs: NCCL takes 16 to 24 of 132 on an H100

struct SimWork final : public c10d::Work {
  int index;
  MomentOf end;
  std::vector<Tensor> tensors;
  intrusive_ptr<ivalue::Future> future;
  SimWork(int index, MomentOf end, std::vector<Tensor> tensors) : index(index), end(std::move(end)), tensors(std::move(tensors)) {
    Guard guard;
    Device card(DeviceType::CUDA, index);
    Stream before = guard.exchangeStream(Stream(Stream::UNSAFE, card, COLLECTIVES));
    future = make_intrusive<ivalue::Future>(ListType::create(TensorType::get()), std::vector<Device>{card});
    future->markCompleted(IValue(this->tensors));
    guard.exchangeStream(before);
  }
  bool isCompleted() override { return passed(end); }
  bool isSuccess() const override { return true; }
  std::vector<Tensor> result() override { return tensors; }
  void synchronize() override {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Device_& d = device(index);
    require_sound(d);
    issue(d, d.streams[stream_of(index)], {.at = 0, .awaited = end});
  }
  bool wait(std::chrono::milliseconds) override { synchronize(); return true; }
  intrusive_ptr<ivalue::Future> getFuture() override { return future; }
};

using OnHost = std::function<void(c10d::Backend&, Call&)>;

/* The room of a group, and the number of its next collective. As with NCCL, the processes of a group find each other at its first collective. */
struct Place {
  weak_intrusive_ptr<c10d::ProcessGroup> group;  // as long as this lives, no other group has its address
  int64_t room, turn = 0;
};

static Place& place_of(const Group& group) {
  static auto& places = *new std::unordered_map<c10d::ProcessGroup*, Place>;
  auto found = places.find(group.get());
  if (found != places.end()) return found->second;
  Place& place = places.emplace(group.get(), Place{weak_intrusive_ptr<c10d::ProcessGroup>(group), 0}).first->second;
  Tensor number = at::zeros({1}, at::kLong);
  if (!group->getRank()) {
    place.room = shared->rooms_given++ % ROOMS;
    for (int64_t i = 0; i < SEATS; i++) {
      Seat& seat = shared->rooms[place.room][i];
      seat.latest = 0, seat.arrived = 0, seat.left = 0, seat.turn = i;
    }
    number.fill_(place.room);
  }
  std::vector<Tensor> one{number};
  group->getBackend(DeviceType::CPU)->broadcast(one)->wait();
  place.room = number.const_data_ptr<int64_t>()[0];
  advance_always();
  return place;
}

/* What torch's flight recorder keeps of a collective of NCCL: the last ones, without the lines of the program. */
struct Recorded {
  int64_t number, turn, bytes, created_ns;
  const char* kind;
  std::string group, description;
  MomentOf ready, end;
};
constexpr size_t RECORDED = 2000;
static auto& recorded_collectives = *new std::deque<Recorded>;

static void record_collective(const Group& group, const char* kind, int64_t turn, double bytes, MomentOf ready, MomentOf end) {
  static int64_t number = 0;
  int64_t created_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::lock_guard<std::recursive_mutex> hold(lock);
  recorded_collectives.push_back({number++, turn, (int64_t)bytes, created_ns, kind, group->getGroupName(), group->getGroupDesc(), std::move(ready), std::move(end)});
  if (recorded_collectives.size() > RECORDED) recorded_collectives.pop_front();
}

/* `bytes`: of the larger side; `moved`: those that cross a card's link in one direction. */
static Work collective(const Group& group, const char* kind, std::vector<Tensor> tensors, double bytes, double moved, const OnHost& values) {
  int index = tensors.front().device().index();
  Cost cost;
  cost.seconds = slowdown * (COLLECTIVE_S + moved / cards[device(index).cache.card].peer);
  cost.sm_s = cost.seconds * COLLECTIVE_SMS, cost.bytes = 2 * moved, cost.dram_s = slowdown * cost.bytes / cards[device(index).cache.card].bandwidth;
  if (with_values || !shared) {
    double ready = std::max(tail_of(index, stream_of(index)), tail_of(index, COLLECTIVES));
    std::vector<Tensor> start{at::full({1}, ready, at::dtype(at::kDouble))};
    c10d::AllreduceOptions latest;
    latest.reduceOp = ReduceOp::MAX;
    auto host = group->getBackend(DeviceType::CPU);
    host->allreduce(start, latest)->wait();
    Call call;
    if (with_values) values(*host, call);
    launch(index, COLLECTIVES, cost, start[0].const_data_ptr<double>()[0]);
  } else {
    Place& place = place_of(group);
    Seat& seat = shared->rooms[place.room][place.turn % SEATS];
    MomentOf inputs = mark(index, stream_of(index));
    std::lock_guard<std::recursive_mutex> hold(lock);
    Device_& d = device(index);
    issue(d, d.streams[COLLECTIVES], {.at = 0, .awaited = inputs});
    MomentOf ready = mark(index, COLLECTIVES);
    launch(index, COLLECTIVES, cost, INFINITY, std::shared_ptr<Meeting>(new Meeting{seat, place.turn++, group->getSize()}));
    record_collective(group, kind, place.turn, bytes, std::move(ready), mark(index, COLLECTIVES));
  }
  return make_intrusive<SimWork>(index, mark(index, COLLECTIVES), std::move(tensors));
}

static double share(const Group& group) { return (group->getSize() - 1.0) / group->getSize(); }

static double bytes_of(at::TensorList tensors) {
  double bytes = 0;
  for (const Tensor& t : tensors) bytes += bytes_of(t);
  return bytes;
}

/* Gloo has no mean. */
static ReduceOp on_host(const Operation& op) { return *op == ReduceOp::AVG ? ReduceOp(ReduceOp::SUM) : *op; }
static void finish_mean(const Operation& op, const Group& group, const Tensor& t) { if (*op == ReduceOp::AVG) t.div_(group->getSize()); }

static Work reduce_all(at::TensorList tensors, const Group& group, const Operation& op) {
  return collective(group, "all_reduce", tensors.vec(), bytes_of(tensors), 2 * share(group) * bytes_of(tensors), [&](c10d::Backend& host, Call& call) {
    for (const Tensor& t : tensors) {
      std::vector<Tensor> one{call.stand_in(t)};
      c10d::AllreduceOptions options;
      options.reduceOp = on_host(op);
      host.allreduce(one, options)->wait();
      finish_mean(op, group, one[0]);
    }
  });
}
static std::tuple<std::vector<Tensor>, Work> allreduce(at::TensorList tensors, const Group& group, const Operation& op, const std::optional<Tensor>&, bool, int64_t) {
  return {tensors.vec(), reduce_all(tensors, group, op)};
}
static Work allreduce_coalesced(at::TensorList tensors, const Group& group, const Operation& op, bool, int64_t) { return reduce_all(tensors, group, op); }

static std::tuple<std::vector<Tensor>, Work> broadcast(at::TensorList tensors, const Group& group, int64_t root, int64_t root_tensor, bool, int64_t) {
  return {tensors.vec(), collective(group, "broadcast", tensors.vec(), bytes_of(tensors), bytes_of(tensors), [&](c10d::Backend& host, Call& call) {
    for (const Tensor& t : tensors) {
      std::vector<Tensor> one{call.stand_in(t)};
      c10d::BroadcastOptions options;
      options.rootRank = root, options.rootTensor = root_tensor;
      host.broadcast(one, options)->wait();
    }
  })};
}

static Work gather_all(const std::vector<Tensor>& outs, const std::vector<Tensor>& ins, const Group& group) {
  return collective(group, "_all_gather_base", outs, bytes_of(outs), share(group) * bytes_of(outs), [&](c10d::Backend& host, Call& call) {
    for (size_t i = 0; i < outs.size(); i++) {
      std::vector<std::vector<Tensor>> parts{call.stand_in(outs[i]).view({-1}).chunk(group->getSize())};
      std::vector<Tensor> own{call.stand_in(ins[i]).reshape({-1})};
      host.allgather(parts, own)->wait();
    }
  });
}
static std::tuple<Tensor, Work> allgather_base(Tensor& out, Tensor& in, const Group& group, bool, int64_t) { return {out, gather_all({out}, {in}, group)}; }
static Work allgather_coalesced(at::TensorList outs, at::TensorList ins, const Group& group, bool) { return gather_all(outs.vec(), ins.vec(), group); }
static std::tuple<std::vector<std::vector<Tensor>>, Work> allgather(const std::vector<std::vector<Tensor>>& outs, at::TensorList ins, const Group& group, bool, int64_t) {
  return {outs, collective(group, "all_gather", outs[0], bytes_of(outs[0]), share(group) * bytes_of(outs[0]), [&](c10d::Backend& host, Call& call) {
    std::vector<std::vector<Tensor>> parts(1);
    for (const Tensor& t : outs[0]) parts[0].push_back(call.stand_in(t));
    std::vector<Tensor> own{call.stand_in(ins[0])};
    host.allgather(parts, own)->wait();
  })};
}

static Work scatter_sums(const std::vector<Tensor>& outs, const std::vector<Tensor>& ins, const Group& group, const Operation& op) {
  return collective(group, "_reduce_scatter_base", outs, bytes_of(ins), share(group) * bytes_of(ins), [&](c10d::Backend& host, Call& call) {
    for (size_t i = 0; i < outs.size(); i++) {
      std::vector<Tensor> sums{call.stand_in(ins[i]).clone().view({-1})};
      c10d::AllreduceOptions options;
      options.reduceOp = on_host(op);
      host.allreduce(sums, options)->wait();
      finish_mean(op, group, sums[0]);
      Tensor out = call.stand_in(outs[i]);
      out.copy_(sums[0].chunk(group->getSize())[group->getRank()].view_as(out));
    }
  });
}
static std::tuple<Tensor, Work> reduce_scatter_base(Tensor& out, Tensor& in, const Group& group, const Operation& op, bool, int64_t) {
  return {out, scatter_sums({out}, {in}, group, op)};
}
static Work reduce_scatter_coalesced(at::TensorList outs, at::TensorList ins, const Group& group, const Operation& op, bool, int64_t) {
  return scatter_sums(outs.vec(), ins.vec(), group, op);
}

static Work barrier(Tensor tensor, const Group& group, const std::vector<int64_t>&, bool, int64_t) {
  Work work = collective(group, "barrier", {tensor}, 0, 0, [](c10d::Backend&, Call&) {});
  work->synchronize();
  wait_until(end_of(tensor.device().index()), "barrier");
  require_sound(device(tensor.device().index()));
  return work;
}

/* The dispatcher warns about operators that get another kernel; here this is intended. */
struct Quiet final : public WarningHandler { void process(const Warning&) override {} };
static Quiet quiet;
static WarningHandler* usual_warnings = [] {
  WarningHandler* before = WarningUtils::get_warning_handler();
  WarningUtils::set_warning_handler(&quiet);
  return before;
}();
TORCH_LIBRARY_IMPL(c10d, CUDA, m) {
  m.impl("allreduce_", TORCH_FN(allreduce));
  m.impl("allreduce_coalesced_", TORCH_FN(allreduce_coalesced));
  m.impl("broadcast_", TORCH_FN(broadcast));
  m.impl("allgather_", TORCH_FN(allgather));
  m.impl("_allgather_base_", TORCH_FN(allgather_base));
  m.impl("allgather_into_tensor_coalesced_", TORCH_FN(allgather_coalesced));
  m.impl("_reduce_scatter_base_", TORCH_FN(reduce_scatter_base));
  m.impl("reduce_scatter_tensor_coalesced_", TORCH_FN(reduce_scatter_coalesced));
  m.impl("barrier", TORCH_FN(barrier));
}
/* The times of DistributedDataParallel's own logger: positions on the stream, as torch's CudaTimer (reducer_cuda.cpp) takes from events. */
struct StreamTimer final : public c10d::Timer {
  int index;
  std::map<Event, MomentOf> ends;
  explicit StreamTimer(Device on) : index(on.index()) {}
  void record(Event event) override {
    Timer::record(event);
    ends[event] = mark(index, stream_of(index));
  }
  std::optional<int64_t> measureDifference(Event start, Event end) override { /* nanoseconds */
    if (!ends.count(start) || !ends.count(end)) return std::nullopt;
    for (Event event : {start, end})
      if (!passed(ends[event])) wait_for(ends[event], "event");
    double seconds = ends[end]->t - ends[start]->t;
    return seconds < 0 ? std::nullopt : std::optional<int64_t>(seconds * 1e9);
  }
};
namespace c10d { C10_REGISTER_TYPED_CLASS(TimerRegistry, kCUDA, StreamTimer) }

static auto warn_again = [] { WarningUtils::set_warning_handler(usual_warnings); return 0; }();

/* --- for runtime.py --------------------------------------------------------------------------------------------------------- */

/* The text of the error of `call`, or null: no C++ exception may reach ctypes. Calls that can fail go through it. */
template <typename F> static const char* attempt(const F& call) {
  thread_local std::string text;
  try {
    call();
    return nullptr;
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  return text.c_str();
}

extern "C" {
void sim_configure(const char* path) { config_path = path; read_machine(); }
void sim_on_sync(void (*callback)(const char*)) { sync_callback = callback; }
void sim_on_fork(void (*callback)(DeviceType)) { tell_torch_of_forks = callback; }
void sim_poison_forks() { poison_forks(); }
int sim_in_bad_fork() { return in_bad_fork; }
int sim_visible(int* found) {
  std::vector<int> all;
  if (devices.empty()) all = visible_cards();
  else for (Device_* d : devices) all.push_back(d->cache.card);
  for (size_t i = 0; i < all.size(); i++) found[i] = all[i];
  return all.size();
}
void sim_initialise() { initialise(); }
int sim_has_values() { return with_values; }
int sim_device() { return present_device; }
/* What torch compiles for CUDA only: FSDP2 frees and allocates storages in this way. */
const char* sim_resize_storage(void* of, size_t bytes) {
  return attempt([&] {
    StorageImpl* storage = (StorageImpl*)of;
    int before = std::exchange(present_device, (int)storage->device().index());
    DataPtr data = card_allocator.allocate(bytes);
    present_device = before;
    if (with_values && data && storage->data()) memcpy(data.mutable_get(), storage->data(), std::min(bytes, storage->nbytes()));
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(bytes);
  });
}
/* `forced`: as cudaSetDevice, which makes a context; else the device is only the present one for what follows. */
const char* sim_set_device(int index, int forced) {
  return attempt([&] {
    require_usable();
    if (index < 0) return;
    forced ? device(index) : figures(index);
    present_device = index;
  });
}
const char* sim_memory(int index, double* out) {
  return attempt([&] {
    Device_& d = figures(index);
    std::lock_guard<std::recursive_mutex> hold(lock);
    Cache& c = d.cache;
    double values[] = {(double)c.allocated, (double)c.reserved, (double)c.allocated_peak, (double)c.reserved_peak, (double)c.inactive_split(),
                       (double)c.retries, (double)c.ooms, c.free_on_card(), cards[c.card].memory};
    std::copy(std::begin(values), std::end(values), out);
  });
}
double sim_total_memory(int card) { return cards[card].memory; }
const char* sim_need_context(int index) { return attempt([&] { require_sound(device(index)); }); }
const char* sim_reset_peaks(int index) {
  return attempt([&] {
    Cache& c = figures(index).cache;
    std::lock_guard<std::recursive_mutex> hold(lock);
    c.allocated_peak = c.allocated, c.reserved_peak = c.reserved;
  });
}
const char* sim_empty_cache() {
  return attempt([&] {
    require_usable();
    refuse_in_capture(false);
    initialise();
    for (size_t index = 0; index < devices.size(); index++) {
      require_sound(*devices[index]);
      {
        std::lock_guard<std::recursive_mutex> hold(lock);
        devices[index]->cache.release();
      }
      pay(index);
    }
  });
}
void sim_set_kernel_s(double seconds) { kernel_s = seconds; }
double sim_queued_s(int index) { return std::max(0.0, end_of(index) - now()); }
const char* sim_set_fraction(int index, double fraction) { return attempt([&] { figures(index).cache.fraction = fraction; }); }
const char* sim_launch(int index, double seconds) {
  return attempt([&] {
    int on = index < 0 ? present_device : index;
    Cost cost;
    cost.seconds = seconds, cost.sm_s = seconds * ONE_SM_SHARE;
    launch(on, stream_of(on), cost);
  });
}
/* The lines of the flight recorder: number, turn, bytes, ns of the call, milliseconds on the card (-1: not over), kind, group, description. */
const char* sim_collectives() {
  static std::string text;
  std::lock_guard<std::recursive_mutex> hold(lock);
  std::ostringstream lines;
  for (const Recorded& r : recorded_collectives)
    lines << r.number << '\t' << r.turn << '\t' << r.bytes << '\t' << r.created_ns << '\t' << (passed(r.end) ? 1e3 * (r.end->t - r.ready->t) : -1) << '\t' << r.kind
          << '\t' << r.group << '\t' << r.description << '\n';
  text = lines.str();
  return text.c_str();
}
const char* sim_synchronize(int index) { return attempt([&] { wait_for_device(index < 0 ? present_device : index); }); }
const char* sim_clock(int index, double* out) {
  return attempt([&] {
    Device_& d = figures(index);
    std::lock_guard<std::recursive_mutex> hold(lock);
    out[0] = d.kernels, out[1] = d.busy_s;
  });
}
/* CUDA graphs. A graph that has been captured keeps its pool until it is reset. */
int sim_is_capturing() { return capture && is_capturing(present_device, stream_of(present_device)); }
Graph* sim_graph_new() { return new Graph; }
uint64_t sim_graph_pool(Graph* graph) { return graph->pool; }
uint64_t sim_new_pool() {
  static std::atomic<uint64_t> made{0};
  return ++made;
}
const char* sim_graph_reset(Graph* graph) {
  return attempt([&] {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (graph->captured) devices[graph->index]->cache.of_graphs[graph->pool].graphs--;
    forget_addresses(graph);
    *graph = Graph();
  });
}
void sim_graph_delete(Graph* graph) {
  sim_graph_reset(graph);
  delete graph;
}
const char* sim_capture_begin(Graph* graph, uint64_t pool, const char* mode) {
  return attempt([&] {
    static uint64_t captures = 0;
    Device_& d = device(present_device);
    std::lock_guard<std::recursive_mutex> hold(lock);
    StreamId stream = stream_of(present_device);
    TORCH_CHECK(!graph->captured, "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance.");
    TORCH_CHECK(stream != 0, "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the default stream.)");
    TORCH_CHECK(!capture, "CUDA error: operation not permitted when stream is capturing (simulated)");
    std::string word = mode;
    TORCH_CHECK(word == "global" || word == "thread_local" || word == "relaxed",
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ", word);
    *graph = Graph{Cost(), present_device, pool ? pool : sim_new_pool(), false};
    graph->total.kernels = 0;
    d.cache.of_graphs[graph->pool].graphs++;
    capture = new Capture{++captures, graph, stream, word == "global" ? GLOBAL : word == "relaxed" ? RELAXED : THREAD_LOCAL, std::this_thread::get_id()};
    capture->tails[stream] = 0;
  });
}
const char* sim_capture_end(Graph* graph) {
  return attempt([&] {
    std::lock_guard<std::recursive_mutex> hold(lock);
    TORCH_CHECK(capture && capture->graph == graph, "CUDA error: the stream is not capturing this graph (simulated)");
    TORCH_CHECK(capture->origin == stream_of(present_device) && graph->index == present_device, "Capture must end on the same stream it began on.");
    std::unique_ptr<Capture> ended(std::exchange(capture, nullptr));
    if (ended->invalid) {
      devices[graph->index]->cache.of_graphs[graph->pool].graphs--;
      TORCH_CHECK(false, "CUDA error: operation failed due to a previous error during capture (simulated): the capture was invalidated");
    }
    for (auto& [stream, tail] : ended->tails) graph->total.seconds = std::max(graph->total.seconds, tail);
    graph->captured = true;
  });
}
/* One launch for all the kernels. */
const char* sim_graph_replay(Graph* graph) {
  return attempt([&] {
    require_usable();
    TORCH_CHECK(graph->captured, "Called CUDAGraph::replay without a preceding successful capture.");
    TORCH_CHECK(!graph->freed, "CUDA error: an illegal memory access was encountered (simulated): the graph reads memory that was freed");
    launch(graph->index, stream_of(graph->index), graph->total);
  });
}
}
