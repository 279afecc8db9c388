// What a kernel compiled for the CPU calls in the emulator's runtime. No standard header: this is
// parsed with every kernel. `site` is a line of the generated source, for messages.
#pragma once

extern "C" {

struct mdf_emu_index3 {
  unsigned x, y, z;
};
// The thread that runs now, as threadIdx and its kin show it.
struct mdf_emu_thread {
  mdf_emu_index3 thread, block, block_dim, grid_dim;
};
extern mdf_emu_thread* mdf_emu_current;

// One shared array of a kernel: where it lies in the block's shared memory.
struct mdf_emu_array {
  const char* name;
  unsigned offset, element;
  long long count;
};

void mdf_emu_load(unsigned long long address, unsigned bytes, unsigned element, void* out, int site);
void mdf_emu_store(unsigned long long address, unsigned bytes, unsigned element, const void* value,
                   int site);
// Atomics and mailboxes: checks the access and returns the address to work on.
void* mdf_emu_atomic(unsigned long long address, unsigned bytes, int site);
void* mdf_emu_mailbox(unsigned long long address, unsigned bytes, bool write, int site);
// Ends the launch: an index that was read selects nothing.
void mdf_emu_index_fault(long long index, long long extent, int site);
// Lets the others run: called where a kernel may spin on a value.
void mdf_emu_poll(int site);

unsigned mdf_emu_static_shared(unsigned long long* key, const char* name,
                               unsigned long long bytes, int site);
unsigned mdf_emu_dynamic_shared(const char* name, unsigned long long offset,
                                unsigned long long bytes, int site);
void mdf_emu_shared_load(const mdf_emu_array* array, long long i, unsigned n, void* out, int site);
void mdf_emu_shared_store(const mdf_emu_array* array, long long i, unsigned n, const void* value,
                          int site);
// Copies that are done at the wait for their group; until then their target counts as unwritten.
void mdf_emu_copy(const mdf_emu_array* array, long long i, unsigned n, unsigned long long address,
                  int site);
void mdf_emu_commit_copies(void);
void mdf_emu_wait_copies(unsigned under_way);
void mdf_emu_cluster_load(const mdf_emu_array* array, long long i, unsigned rank, void* out,
                          int site);

void mdf_emu_barrier(int site);
void mdf_emu_cluster_barrier(int site);
unsigned mdf_emu_cluster_rank(void);
unsigned mdf_emu_cluster_size(void);
void mdf_emu_fence(int site);
void mdf_emu_warp_barrier(unsigned mask, int site);
// `value` of the calling lane becomes that of lane `source`; all lanes of `mask` take part.
void mdf_emu_shuffle(unsigned mask, unsigned source, void* value, unsigned bytes, int site);
unsigned mdf_emu_ballot(unsigned mask, bool value, int site);
unsigned mdf_emu_lane(void);

}  // extern "C"
