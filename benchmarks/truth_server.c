// An endpoint that streams chat completions and remembers when it wrote each token: the truth that what a
// client measures is held against. One thread, epoll, absolute schedule; listens on 127.0.0.1 only.
//
//   cc -O2 -o truth_server truth_server.c
//   ./truth_server TRUTH_FILE STEP_NS PREFILL_NS
//
// Prints its port on standard output; ends on SIGTERM. An answer has as many tokens as the request asks for.
// Token k is due PREFILL_NS + k * STEP_NS after the request had come whole, and is one event in one chunk in
// one send(). STEP_NS 0: all are due at once, and up to 200 share a send().
//
// TRUTH_FILE, little endian, one record an answer in the order of their ends:
//   u32 magic 0x54525554, u32 tokens, i64 received_ns, i64 body_bytes, char id[128], i64 written_ns[tokens]
// Times are CLOCK_MONOTONIC, taken just before each send(). id: the request's x-request-id, or its
// x-session-id, a space and its x-agentload-turn-id.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_FDS = 65536, ID_BYTES = 128, MOST_AT_ONCE = 200, UNASKED_TOKENS = 16 };
enum { LOOKED_AT = 4096, EVENTS = 512 };
enum stage { HEAD, TOKENS, TAIL, WRITTEN };
enum result { DONE, LATER, BLOCKED, DEAD };

typedef struct {
  int fd, blocked, usage, answering;
  int place;  // in the heap; -1: not waiting for its time
  enum stage stage;
  char *in;
  size_t in_len, in_cap, need, head_len;  // need: of the whole request, 0 until its head is here
  char id[ID_BYTES];
  int64_t received_ns, due_ns;
  uint32_t tokens, sent, written_cap;
  int64_t *written_ns;
  size_t out_done, out_len;
  char out[48 << 10];
} stream;

static stream *streams[MOST_FDS], *heap[MOST_FDS];
static int heap_len, poll_fd;
static int64_t step_ns, prefill_ns;
static FILE *truth;
static volatile sig_atomic_t stopping;

#define EVENT(choices)                                                                                   \
  "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"               \
  "\"model\":\"mock\",\"choices\":[" choices "]"

static const char ANSWER_HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                  "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char TOKEN[] =
    EVENT("{\"index\":0,\"delta\":{\"content\":\" the\"},\"finish_reason\":null}") "}\n\n";
static const char LAST[] = EVENT("{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}") "}\n\n";
static const char USAGE[] =
    EVENT("") ",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%u,\"total_tokens\":%zu}}\n\n";
static const char MODELS[] = "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\"}]}";
static char token_chunk[512];
static size_t token_chunk_len;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void on_signal(int number) {
  (void)number;
  stopping = 1;
}

// --- the streams that wait for their time, the first due on top

static void put(stream *s, int at) {
  heap[at] = s;
  s->place = at;
}

static void sift(int at) {
  stream *s = heap[at];
  while (at && heap[(at - 1) / 2]->due_ns > s->due_ns) {
    put(heap[(at - 1) / 2], at);
    at = (at - 1) / 2;
  }
  for (int child; (child = 2 * at + 1) < heap_len; at = child) {
    if (child + 1 < heap_len && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
    if (heap[child]->due_ns >= s->due_ns) break;
    put(heap[child], at);
  }
  put(s, at);
}

static void leave_heap(stream *s) {
  if (s->place < 0) return;
  int at = s->place;
  s->place = -1;
  stream *moved = heap[--heap_len];
  if (moved != s) {
    put(moved, at);
    sift(at);
  }
}

static void wait_for(stream *s, int64_t due_ns) {
  s->due_ns = due_ns;
  if (s->place < 0) put(s, heap_len++);
  sift(s->place);
}

// --- writing

static void watch_writable(stream *s, int blocked) {
  if (s->blocked == blocked) return;
  struct epoll_event event = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.fd = s->fd};
  epoll_ctl(poll_fd, EPOLL_CTL_MOD, s->fd, &event);
  s->blocked = blocked;
}

static enum result flush(stream *s) {
  while (s->out_done < s->out_len) {
    ssize_t sent = send(s->fd, s->out + s->out_done, s->out_len - s->out_done, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN) return DEAD;
      watch_writable(s, 1);
      return BLOCKED;
    }
    s->out_done += sent;
  }
  s->out_done = s->out_len = 0;
  watch_writable(s, 0);
  return DONE;
}

static void append(stream *s, const char *bytes, size_t len) {
  memcpy(s->out + s->out_len, bytes, len);
  s->out_len += len;
}

static void append_chunk(stream *s, const char *bytes, size_t len) {
  s->out_len += sprintf(s->out + s->out_len, "%zx\r\n", len);
  append(s, bytes, len);
  append(s, "\r\n", 2);
}

static void append_tail(stream *s) {
  append_chunk(s, LAST, sizeof LAST - 1);
  if (s->usage) {
    char text[512];
    size_t prompt = (s->need - s->head_len) / 4;
    append_chunk(s, text, sprintf(text, USAGE, prompt, s->tokens, prompt + s->tokens));
  }
  append_chunk(s, "data: [DONE]\n\n", 14);
  append(s, "0\r\n\r\n", 5);
}

static void forget_request(stream *s) {
  s->answering = 0;
  s->in_len -= s->need;
  memmove(s->in, s->in + s->need, s->in_len);
  s->need = s->head_len = 0;
}

static void end_answer(stream *s) {
  uint32_t counts[2] = {0x54525554u, s->tokens};
  int64_t values[2] = {s->received_ns, (int64_t)(s->need - s->head_len)};
  fwrite(counts, sizeof counts, 1, truth);
  fwrite(values, sizeof values, 1, truth);
  fwrite(s->id, ID_BYTES, 1, truth);
  fwrite(s->written_ns, 8, s->tokens, truth);
  forget_request(s);
}

static enum result advance(stream *s) {
  for (;;) {
    enum result flushed = flush(s);
    if (flushed != DONE) return flushed;
    if (s->stage == HEAD) {
      append(s, ANSWER_HEAD, sizeof ANSWER_HEAD - 1);
      s->stage = TOKENS;
    } else if (s->stage == TOKENS) {
      int64_t due_ns = s->received_ns + prefill_ns + s->sent * step_ns, at_ns = now_ns();
      if (due_ns > at_ns) {
        wait_for(s, due_ns);
        return LATER;
      }
      for (int n = step_ns ? 1 : MOST_AT_ONCE; n && s->sent < s->tokens; n--) {
        append(s, token_chunk, token_chunk_len);
        s->written_ns[s->sent++] = at_ns;
      }
      if (s->sent == s->tokens) s->stage = TAIL;
    } else if (s->stage == TAIL) {
      append_tail(s);
      s->stage = WRITTEN;
    } else {
      end_answer(s);
      return DONE;
    }
  }
}

// --- reading

static void header(const stream *s, const char *name, char *value, size_t most) {
  size_t name_len = strlen(name);
  value[0] = 0;
  for (const char *line = s->in, *end = s->in + s->head_len; line < end;) {
    const char *line_end = memmem(line, end - line, "\r\n", 2);
    if (!line_end) return;
    if ((size_t)(line_end - line) > name_len && !strncasecmp(line, name, name_len)) {
      line += name_len;
      while (*line == ' ') line++;
      size_t len = (size_t)(line_end - line) < most - 1 ? (size_t)(line_end - line) : most - 1;
      memcpy(value, line, len);
      value[len] = 0;
      return;
    }
    line = line_end + 2;
  }
}

static void read_id(stream *s) {
  memset(s->id, 0, ID_BYTES);
  header(s, "x-request-id:", s->id, ID_BYTES);
  if (s->id[0]) return;
  header(s, "x-session-id:", s->id, ID_BYTES / 2);
  size_t len = strlen(s->id);
  s->id[len] = ' ';
  header(s, "x-agentload-turn-id:", s->id + len + 1, ID_BYTES - len - 1);
}

// The number after a key near the end of the body, or near its beginning; -1 if there is none.
static long field(const char *body, size_t len, const char *key) {
  size_t part = len < LOOKED_AT ? len : LOOKED_AT;
  const char *found = memmem(body + len - part, part, key, strlen(key));
  if (!found) found = memmem(body, part, key, strlen(key));
  return found ? strtol(found + strlen(key) + strspn(found + strlen(key), " :"), NULL, 10) : -1;
}

static void begin_answer(stream *s) {
  s->received_ns = now_ns();
  read_id(s);
  const char *body = s->in + s->head_len;
  size_t len = s->need - s->head_len;
  long asked = field(body, len, "\"max_completion_tokens\"");
  if (asked < 0) asked = field(body, len, "\"max_tokens\"");
  s->usage = field(body, len, "\"include_usage\"") >= 0;
  s->tokens = asked > 0 ? (uint32_t)asked : UNASKED_TOKENS;
  if (s->tokens > s->written_cap) {
    s->written_ns = realloc(s->written_ns, 8ul * s->tokens);
    s->written_cap = s->tokens;
  }
  s->sent = 0;
  s->stage = HEAD;
  s->answering = 1;
}

static enum result tell_models(stream *s) {
  char text[512];
  int known = !strncmp(s->in, "GET /v1/models ", 15), len = known ? (int)sizeof MODELS - 1 : 2;
  int all = sprintf(text, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%.*s",
                    known ? "200 OK" : "404 Not Found", len, len, known ? MODELS : "{}");
  if (send(s->fd, text, all, MSG_NOSIGNAL) != all) return DEAD;
  forget_request(s);
  return DONE;
}

// Answer the requests that are here, one after the other, as far as can be done now.
static enum result serve(stream *s) {
  for (;;) {
    if (!s->answering) {
      if (!s->need) {
        char *end = s->in_len ? memmem(s->in, s->in_len, "\r\n\r\n", 4) : NULL, length[32];
        if (!end) return DONE;
        s->head_len = end + 4 - s->in;
        header(s, "content-length:", length, sizeof length);
        s->need = s->head_len + strtoul(length, NULL, 10);
      }
      if (s->in_len < s->need) return DONE;
      if (strncmp(s->in, "POST", 4)) {
        if (tell_models(s) == DEAD) return DEAD;
        continue;
      }
      begin_answer(s);
    }
    enum result result = advance(s);
    if (result != DONE) return result;
  }
}

static enum result receive(stream *s) {
  for (;;) {
    if (s->in_cap - s->in_len < 16384) {
      s->in_cap = s->in_cap ? s->in_cap * 2 : 32768;
      s->in = realloc(s->in, s->in_cap);
    }
    ssize_t got = recv(s->fd, s->in + s->in_len, s->in_cap - s->in_len, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return DEAD;
    if (got < 0) break;
    s->in_len += got;
    if (s->in_len < s->in_cap) break;
  }
  return s->answering ? LATER : serve(s);
}

static void close_stream(stream *s) {
  leave_heap(s);
  close(s->fd);
  streams[s->fd] = NULL;
  free(s->in);
  free(s->written_ns);
  free(s);
}

static void accept_all(int listening) {
  int one = 1, fd;
  while ((fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    if (fd >= MOST_FDS) {
      close(fd);
      continue;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    stream *s = streams[fd] = calloc(1, sizeof *s);
    s->fd = fd;
    s->place = -1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
  }
}

static int listen_somewhere(void) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  if (bind(fd, (void *)&address, len) || listen(fd, 4096)) return -1;
  if (getsockname(fd, (void *)&address, &len)) return -1;
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  return fd;
}

static void run(int listening) {
  struct epoll_event events[EVENTS], event = {.events = EPOLLIN, .data.fd = listening};
  poll_fd = epoll_create1(0);
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, listening, &event);
  while (!stopping) {
    int64_t left_ns = heap_len ? heap[0]->due_ns - now_ns() : 0;
    if (left_ns < 0) left_ns = 0;
    struct timespec left = {left_ns / 1000000000LL, left_ns % 1000000000LL};
    int count = epoll_pwait2(poll_fd, events, EVENTS, heap_len ? &left : NULL, NULL);
    for (int i = 0; i < count; i++) {
      if (events[i].data.fd == listening) {
        accept_all(listening);
        continue;
      }
      stream *s = streams[events[i].data.fd];
      if (!s) continue;
      enum result result = DONE;
      if (events[i].events & EPOLLOUT) result = serve(s);
      if (result != DEAD && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) result = receive(s);
      if (result == DEAD) close_stream(s);
    }
    for (int64_t at_ns = now_ns(); heap_len && heap[0]->due_ns <= at_ns;) {
      stream *s = heap[0];
      leave_heap(s);
      if (serve(s) == DEAD) close_stream(s);
    }
  }
}

int main(int argc, char **argv) {
  if (argc != 4 || !(truth = fopen(argv[1], "wb"))) {
    fprintf(stderr, "usage: truth_server TRUTH_FILE STEP_NS PREFILL_NS\n");
    return 2;
  }
  step_ns = atoll(argv[2]);
  prefill_ns = atoll(argv[3]);
  setvbuf(truth, NULL, _IOFBF, 1 << 20);
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);
  prctl(PR_SET_TIMERSLACK, 1000);
  struct rlimit files = {0};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  token_chunk_len = sprintf(token_chunk, "%zx\r\n%s\r\n", sizeof TOKEN - 1, TOKEN);
  int listening = listen_somewhere();
  if (listening < 0) {
    perror("truth_server");
    return 1;
  }
  run(listening);
  fclose(truth);
  return 0;
}
