// profile: where CPU time goes.
//
// Each CPU is at up to four levels at once: a thread, packets that it receives itself, a softirq,
// and an interrupt. A program at each border between levels charges the time since the last border
// to the part that was innermost until then. docs/design/profile.md has the rules.
//
// A program may be interrupted by another one on the same CPU, at each instruction. Time is
// therefore claimed by an exchange of `since`, and added by an atomic instruction. Levels need
// none: an interrupt leaves those below it as they were.
#include "vmlinux.h"
#include "macros.h"
#include <bpf/bpf_tracing.h>
#include "profile.h"

// The kernel offers some helpers only to programs under a licence that is compatible with the GPL.
char LICENSE[] SEC("license") = "Dual MIT/GPL";

// The loader sets these. The verifier takes them as constants, and leaves out what they exclude.
const volatile __u32 selection_kind;
// The process id, the inode number of the cgroup, or that of the namespace.
const volatile __u64 selection_id;
// An `enum call` for each number of a system call.
const volatile __u8 call_kinds[CALLS];

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct window);
} windows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct cpu);
} cpus SEC(".maps");

// The slot in which a thread of the selection was when it left its CPU.
struct {
    __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, __u64);
} threads SEC(".maps");

#define CGROUP_DEPTH_MAX 16

// Needs no atomic instruction: each counter belongs to one level, which does not interrupt itself.
static __always_inline void count(__u64 *counter)
{
    WRITE_ONCE(*counter, READ_ONCE(*counter) + 1);
}

// Returns a slot of `part`, which belongs to the selection only if that is a core.
static __always_inline __u64 common_slot(__u64 part)
{
    return selection_kind == SELECT_CORE ? part | SELECTED : part;
}

static __always_inline int is_in_cgroup(struct task_struct *task)
{
    struct css_set *set = task->cgroups;
    struct cgroup *cgroup = set->dfl_cgrp;
    struct cgroup_subsys_state *state = &cgroup->self;
    for (int depth = 0; depth < CGROUP_DEPTH_MAX && state; depth++) {
        if (state->cgroup->kn->id == selection_id)
            return 1;
        state = state->parent;
    }
    return 0;
}

// Kernel threads are in the first namespace, but work for all of them.
static __always_inline int is_in_namespace(struct task_struct *task)
{
    struct nsproxy *namespaces = task->nsproxy;
    return namespaces && !(task->flags & PF_KTHREAD)
        && namespaces->net_ns->ns.inum == selection_id;
}

static __always_inline int is_selected(struct task_struct *task)
{
    switch (selection_kind) {
    case SELECT_PROCESS:
        return (__u32)task->tgid == selection_id;
    case SELECT_CGROUP:
        return is_in_cgroup(task);
    case SELECT_NAMESPACE:
        return is_in_namespace(task);
    default:
        return 1;
    }
}

static __always_inline int is_socket(struct task_struct *task, __u32 fd)
{
    struct files_struct *files = task->files;
    if (!files)
        return 0;
    struct fdtable *table = files->fdt;
    if (fd >= table->max_fds)
        return 0;
    struct file *file = NULL;
    struct inode *inode = NULL;
    unsigned short mode = 0;
    bpf_probe_read_kernel(&file, sizeof(file), &table->fd[fd]);
    if (!file)
        return 0;
    bpf_probe_read_kernel(&inode, sizeof(inode), &file->f_inode);
    bpf_probe_read_kernel(&mode, sizeof(mode), &inode->i_mode);
    return (mode & S_IFMT) == S_IFSOCK;
}

// Returns the slot of a thread of the selection that is in a system call.
static __always_inline __u64 call_slot(struct task_struct *task, struct pt_regs *regs, __u64 number)
{
    int is_write = 0;
    switch (call_kinds[number & (CALLS - 1)]) {
    case CALL_SEND:
        is_write = 1;
        break;
    case CALL_WRITE_FIRST:
        is_write = is_socket(task, regs->di);
        break;
    case CALL_WRITE_THIRD:
        is_write = is_socket(task, regs->dx);
        break;
    }
    return (is_write ? PART_SOCKET_WRITE : PART_KERNEL) | SELECTED;
}

// Returns the slot of a thread that enters its CPU. A thread that has not left one since the begin
// has no storage. Its registers say whether it is in a system call: the kernel stores -1 instead of
// a number if an interrupt or a fault has left user mode.
static __always_inline __u64 thread_slot(struct task_struct *task)
{
    if (!task->pid)
        return common_slot(PART_IDLE);
    if (!is_selected(task))
        return PART_OTHERS;
    if (task->flags & PF_KTHREAD)
        return PART_KERNEL | SELECTED;
    __u64 *slot = bpf_task_storage_get(&threads, task, NULL, 0);
    if (slot)
        return *slot;
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
    long number = regs->orig_ax;
    return number < 0 ? PART_USER | SELECTED : call_slot(task, regs, number);
}

static __always_inline __u64 innermost_slot(struct cpu *cpu)
{
    if (cpu->interrupt)
        return cpu->interrupt;
    if (cpu->softirq)
        return cpu->softirq;
    return cpu->receive ? cpu->receive : cpu->base;
}

// Charges the time since the last border. The exchange fails if an interrupt came after `since` was
// read. It has charged the time until its own end then, and the second attempt charges the rest.
static __always_inline void charge(struct cpu *cpu)
{
#pragma unroll
    for (int attempt = 0; attempt < 2; attempt++) {
        __u64 since = READ_ONCE(cpu->since), now = bpf_ktime_get_ns();
        __u64 slot = innermost_slot(cpu) & (SLOTS - 1);
        if (now <= since)
            return;
        if (__sync_val_compare_and_swap(&cpu->since, since, now) == since) {
            __sync_fetch_and_add(&cpu->times[slot], now - since);
            return;
        }
    }
}

// Makes a thread the only level of the CPU.
static __always_inline void set_thread(struct cpu *cpu, struct task_struct *task)
{
    cpu->interrupt = cpu->softirq = cpu->receive = 0;
    cpu->base = thread_slot(task);
    cpu->thread = (__u64)task;
}

// Returns the CPU if it is the time to measure. At the first event of a CPU nothing has happened
// since the begin, so the present thread was there all the time. Later, another thread than the
// last one that entered means that a switch was not seen: a kernel may leave out events of some
// threads.
static __always_inline struct cpu *lookup_cpu(void)
{
    __u32 zero = 0;
    struct window *window = bpf_map_lookup_elem(&windows, &zero);
    struct cpu *cpu = bpf_map_lookup_elem(&cpus, &zero);
    if (!window || !cpu)
        return NULL;
    __u64 begin = READ_ONCE(window->begin);
    if (!begin || READ_ONCE(window->end))
        return NULL;
    struct task_struct *task = bpf_get_current_task_btf();
    if (cpu->thread != (__u64)task) {
        if (cpu->thread)
            charge(cpu);
        else
            __sync_val_compare_and_swap(&cpu->since, 0, begin);
        set_thread(cpu, task);
    }
    return cpu;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, int is_preempted, struct task_struct *prev, struct task_struct *next)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu)
        return 0;
    charge(cpu);
    __u64 base = cpu->base;
    if (base & SELECTED && prev->pid && !(prev->flags & PF_KTHREAD)) {
        __u64 *slot =
            bpf_task_storage_get(&threads, prev, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
        if (slot)
            *slot = base;
    }
    set_thread(cpu, next);
    if (cpu->base & SELECTED && next->pid)
        count(&cpu->switches);
    return 0;
}

// The idle thread is about to halt the CPU, or the CPU has woken up. If the switch to the idle
// thread was not seen, lookup_cpu() finds that here, and not only at the next interrupt.
SEC("tp_btf/cpu_idle")
int BPF_PROG(on_idle)
{
    lookup_cpu();
    return 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(on_sys_enter, struct pt_regs *regs, long number)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu || !(cpu->base & SELECTED))
        return 0;
    charge(cpu);
    __u64 slot = call_slot(bpf_get_current_task_btf(), regs, number);
    cpu->base = slot;
    count(&cpu->calls[number & (CALLS - 1)]);
    if (slot == (PART_SOCKET_WRITE | SELECTED))
        count(&cpu->socket_writes);
    return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_sys_exit, struct pt_regs *regs, long result)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu)
        return 0;
    if (selection_kind == SELECT_NAMESPACE
        && call_kinds[regs->orig_ax & (CALLS - 1)] == CALL_NAMESPACE) {
        charge(cpu);
        int is_inside = is_in_namespace(bpf_get_current_task_btf());
        cpu->base = is_inside ? PART_USER | SELECTED : PART_OTHERS;
        return 0;
    }
    if (!(cpu->base & SELECTED))
        return 0;
    charge(cpu);
    cpu->base = PART_USER | SELECTED;
    return 0;
}

// io_uring starts a request. If it is a send, the programs below see its end.
SEC("tp_btf/io_uring_submit_req")
int BPF_PROG(on_ring_submit, struct io_kiocb *request)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu || !(cpu->base & SELECTED))
        return 0;
    __u8 operation = request->opcode;
    int is_send = operation == IORING_OP_SEND || operation == IORING_OP_SENDMSG
        || operation == IORING_OP_SEND_ZC || operation == IORING_OP_SENDMSG_ZC;
    __u64 slot = (is_send ? PART_RING_SEND : PART_KERNEL) | SELECTED;
    if (is_send)
        count(&cpu->socket_writes);
    if (cpu->base != slot) {
        charge(cpu);
        cpu->base = slot;
    }
    return 0;
}

static __always_inline int end_ring_send(void)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu || cpu->base != (PART_RING_SEND | SELECTED) || cpu->softirq || cpu->interrupt)
        return 0;
    charge(cpu);
    cpu->base = PART_KERNEL | SELECTED;
    return 0;
}

// The socket has taken bytes, or has refused.
SEC("tp_btf/sock_send_length")
int BPF_PROG(on_send)
{
    return end_ring_send();
}

// A request of io_uring has ended, perhaps before it came to its socket.
SEC("tp_btf/io_uring_complete")
int BPF_PROG(on_ring_complete)
{
    return end_ring_send();
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu)
        return 0;
    charge(cpu);
    int is_receive = vector == NET_RX_SOFTIRQ;
    __u64 part = is_receive ? PART_RECEIVE : vector == NET_TX_SOFTIRQ ? PART_SEND : PART_SOFTIRQ;
    cpu->is_before_packets = 1;
    cpu->has_selected_packet = 0;
    cpu->softirq = common_slot(part);
    if (vector < NR_SOFTIRQS)
        count(&cpu->softirqs[vector]);
    return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int vector)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu)
        return 0;
    charge(cpu);
    cpu->softirq = 0;
    return 0;
}

// Whether a packet at a device belongs to the selection.
static __always_inline int is_selected_device(const struct net_device *device)
{
    if (selection_kind == SELECT_CORE)
        return 1;
    return selection_kind == SELECT_NAMESPACE && device->nd_net.net->ns.inum == selection_id;
}

// The kernel begins with a packet. The time from here to the next packet, or to the end of the
// softirq, belongs to the namespace of its device. The driver has worked for the first packet
// since the softirq began.
SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_receive, struct sk_buff *packet)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu)
        return 0;
    __u64 selected = is_selected_device(packet->dev);
    count(&cpu->received[selected & 1]);
    if (selection_kind != SELECT_NAMESPACE)
        return 0;
    if (cpu->softirq) {
        __u64 slot = selected ? PART_RECEIVE | SELECTED : PART_RECEIVE;
        if (cpu->softirq != slot) {
            if (!cpu->is_before_packets)
                charge(cpu);
            cpu->softirq = slot;
        }
        cpu->is_before_packets = 0;
        if (selected && !cpu->has_selected_packet) {
            cpu->has_selected_packet = 1;
            count(&cpu->selected_receives);
        }
    } else if (cpu->receive) {
        __u64 slot = selected ? PART_DIRECT_RECEIVE | SELECTED : PART_DIRECT_RECEIVE;
        if (cpu->receive != slot) {
            charge(cpu);
            cpu->receive = slot;
        }
    }
    return 0;
}

// A device hands over a packet. In process context this is a device such as TUN, whose writer's
// thread does what a softirq does for other devices.
SEC("tp_btf/netif_receive_skb_entry")
int BPF_PROG(on_direct_receive, struct sk_buff *packet)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu || cpu->softirq || cpu->interrupt)
        return 0;
    charge(cpu);
    __u64 selected = is_selected_device(packet->dev) ? SELECTED : 0;
    cpu->receive = PART_DIRECT_RECEIVE | selected;
    return 0;
}

SEC("tp_btf/netif_receive_skb_exit")
int BPF_PROG(on_direct_receive_end)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu || !cpu->receive || cpu->softirq || cpu->interrupt)
        return 0;
    charge(cpu);
    cpu->receive = 0;
    return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_transmit, struct sk_buff *packet, struct net_device *device)
{
    struct cpu *cpu = lookup_cpu();
    if (cpu)
        count(&cpu->sent[is_selected_device(device) & 1]);
    return 0;
}

static __always_inline struct cpu *enter_interrupt(void)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu)
        return NULL;
    charge(cpu);
    cpu->interrupt = common_slot(PART_INTERRUPT);
    return cpu;
}

static __always_inline int leave_interrupt(void)
{
    struct cpu *cpu = lookup_cpu();
    if (!cpu)
        return 0;
    charge(cpu);
    cpu->interrupt = 0;
    return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry)
{
    struct cpu *cpu = enter_interrupt();
    if (cpu)
        count(&cpu->device_interrupts);
    return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit)
{
    return leave_interrupt();
}

// Interrupts of x86 that no device causes have tracepoints of their own.
#define LOCAL_INTERRUPT(vector)                                                                    \
    SEC("tp_btf/" #vector "_entry")                                                                \
    int BPF_PROG(on_##vector##_entry)                                                              \
    {                                                                                              \
        struct cpu *cpu = enter_interrupt();                                                       \
        if (cpu)                                                                                   \
            count(&cpu->local_interrupts);                                                         \
        return 0;                                                                                  \
    }                                                                                              \
    SEC("tp_btf/" #vector "_exit")                                                                 \
    int BPF_PROG(on_##vector##_exit)                                                               \
    {                                                                                              \
        return leave_interrupt();                                                                  \
    }

LOCAL_INTERRUPT(local_timer)
LOCAL_INTERRUPT(reschedule)
LOCAL_INTERRUPT(call_function)
LOCAL_INTERRUPT(call_function_single)
LOCAL_INTERRUPT(irq_work)
