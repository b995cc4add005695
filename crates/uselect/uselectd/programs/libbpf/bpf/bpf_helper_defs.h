/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Trimmed copy, see ../README.md: the helpers that programs call, without their descriptions. */

/* This is auto-generated file. See bpf_doc.py for details. */

/* Forward declarations of BPF structs */
struct tcp_sock;
struct task_struct;
struct pt_regs;
struct seq_file;

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *) 1;

static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *) 3;

static __u64 (*bpf_ktime_get_ns)(void) = (void *) 5;

static __u64 (*bpf_get_current_pid_tgid)(void) = (void *) 14;

static void *(*bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *) 107;

static long (*bpf_sk_storage_delete)(void *map, void *sk) = (void *) 108;

static long (*bpf_probe_read_kernel)(void *dst, __u32 size, const void *unsafe_ptr) = (void *) 113;

static long (*bpf_seq_write)(struct seq_file *m, const void *data, __u32 len) = (void *) 127;

static long (*bpf_ringbuf_output)(void *ringbuf, void *data, __u64 size, __u64 flags) = (void *) 130;

static struct tcp_sock *(*bpf_skc_to_tcp_sock)(void *sk) = (void *) 137;

static void *(*bpf_task_storage_get)(void *map, struct task_struct *task, void *value, __u64 flags) = (void *) 156;

static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *) 158;

static long (*bpf_task_pt_regs)(struct task_struct *task) = (void *) 175;

static long (*bpf_loop)(__u32 nr_loops, void *callback_fn, void *callback_ctx, __u64 flags) = (void *) 181;
