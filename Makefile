# Pantheon: one makefile, no recursion, no configure.   `make help` lists the targets.
# Override on the command line or in config.mak:  make FLAVOUR=asan test
#
# A folder is a library and a file in it is in the library: adding a file edits no list. Objects of each flavour live in their own
# folder under $(O); flavours never mix and need no clean.
VERSION    := $(shell cat VERSION)
# What people type for other servers is understood here too (threads and portability are always on).
ifeq ($(DEBUG),1)
FLAVOUR    ?= debug
endif
FLAVOUR    ?= release
prefix     ?= /usr/local
bindir     ?= $(prefix)/bin
sbindir    ?= $(prefix)/sbin
libdir     ?= $(prefix)/lib
includedir ?= $(prefix)/include
sysconfdir ?= /etc
unitdir    ?= $(prefix)/lib/systemd/system
mandir     ?= $(prefix)/share/man
docdir     ?= $(prefix)/share/doc/pantheon
datadir    ?= $(prefix)/share
sysusersdir ?= $(prefix)/lib/sysusers.d
tmpfilesdir ?= $(prefix)/lib/tmpfiles.d
udevdir    ?= $(prefix)/lib/udev/rules.d
PKG_CONFIG ?= pkg-config
PYTHON     ?= python3
# `sudo make install` is not the owner of the checkout, and still installs what was built.
GIT        := git -c safe.directory='$(CURDIR)'
O          ?= build
# CC=aarch64-linux-gnu-gcc O=build-aarch64 cross-compiles; `scripts/deps.sh cross` puts that architecture's libraries into $(O)/sysroot.
CROSS      := $(patsubst %-gcc,%-,$(filter %-gcc,$(CC)))
ifneq ($(CROSS),)
AR         := $(CROSS)ar
endif
SYSROOT    ?= $(abspath $(wildcard $(O)/sysroot))
FOUNDRY    ?= foundry
-include config.mak
B          := $(O)/$(FLAVOUR)

# One backend per binary; this version has the CPU's.
ifneq ($(filter 1,$(USE_CUDA) $(USE_TT) $(USE_METAL)),)
$(error This version builds the cpu backend only: USE_CUDA, USE_TT and USE_METAL are not available yet)
endif
BACKEND    := cpu
# OpenBLAS by name (--isa blas), opened at run time: see foundry/cpu/blas.c.
ifeq ($(USE_BLAS),1)
CPPFLAGS   += -DFO_BLAS
endif

ifeq ($(wildcard $(FOUNDRY)/base/err.h),)
ifneq ($(wildcard $(FOUNDRY)/foundry/base/err.h),)
override FOUNDRY := $(FOUNDRY)/foundry
else
$(error No tensor library at '$(FOUNDRY)': set FOUNDRY to a foundry checkout (a folder with base/err.h), or leave it unset)
endif
endif

# A service that reads what strangers send is worth the checks; kernels see numbers alone (HOT, below).
CFLAGS.release := -O3 -g -fstack-protector-strong -D_FORTIFY_SOURCE=2
LDFLAGS.release := -pie -Wl,-z,relro,-z,now
CFLAGS.debug   := -O0 -g3 -DFO_DEBUG
CFLAGS.asan    := -O1 -g3 -DFO_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS.tsan    := -O1 -g3 -DFO_DEBUG -fsanitize=thread
CFLAGS.fuzz    := -O1 -g3 -DFO_DEBUG -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all
ifeq ($(CFLAGS.$(FLAVOUR)),)
$(error FLAVOUR=$(FLAVOUR): choose release, debug, asan, tsan or fuzz)
endif
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wwrite-strings -Wformat=2 -Wdouble-promotion
TARGET := $(shell $(CC) -dumpmachine)
ARCH := $(if $(filter x86_64%,$(TARGET)),-march=x86-64-v2)
# A foundry elsewhere is seen under its own name, so that #include "foundry/..." stays one spelling.
INC := $(if $(filter-out foundry,$(FOUNDRY)),-I$(B)/inc) -I.
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE $(addprefix --sysroot=,$(SYSROOT)) $(INC) -MMD -MP -ffp-contract=off -fno-common -fPIC $(ARCH) $(WARN) $(CFLAGS.$(FLAVOUR)) $(ISA) $(HOT) $(CPPFLAGS) $(CFLAGS)
ifeq ($(V),)
Q := @
endif

# --- sources ---------------------------------------------------------------------------------
src = $(wildcard $(1)/*.c $(1)/*/*.c)
obj = $(patsubst %.c,$(B)/%.o,$(1))
FOUNDRY_OBJ := $(patsubst $(FOUNDRY)/%.c,$(B)/foundry/%.o,$(call src,$(FOUNDRY)))
ENGINE_OBJ  := $(call obj,$(call src,engine))
PROGS   := pantheond pantheon-reconcile pantheon-$(BACKEND)
MAINS   := daemon/pantheond.c daemon/pantheon-reconcile.c daemon/pantheon.c
LIBS    := $(B)/libpantheond.a $(B)/libengine.a $(B)/libconfig.a $(B)/libfoundry.a
TESTS   := $(patsubst %.c,$(B)/%,$(wildcard tests/*/test_*.c))
BENCHES := $(patsubst %.c,$(B)/%,$(wildcard tests/bench/bench_*.c))
FUZZERS := $(patsubst %.c,$(B)/%,$(wildcard tests/fuzz/fuzz_*.c))
REPLAYS := $(FUZZERS:$(B)/tests/fuzz/fuzz_%=$(B)/tests/fuzz/replay_%)
TOOLS   := $(patsubst %.c,$(B)/%,$(wildcard tests/gen/*.c))
HELPERS := $(call obj,$(wildcard tests/support/*.c))
DAEMON_LIBS := -lyaml -lsystemd -lssl -lcrypto -lcurl
CORE_LIBS   := -ljansson -lm -lpthread -ldl

all: $(PROGS:%=root-%) root-libpantheon.a
pantheon: root-pantheon-$(BACKEND)
libpantheon.a: root-libpantheon.a
$(B)/libfoundry.a:   $(FOUNDRY_OBJ)
$(B)/libengine.a:    $(ENGINE_OBJ)
$(B)/libpantheon.a:  $(ENGINE_OBJ) $(FOUNDRY_OBJ)
$(B)/libconfig.a:    $(call obj,$(call src,config))
$(B)/libpantheond.a: $(call obj,$(filter-out $(MAINS),$(call src,daemon))) $(B)/page_text.o
# The page's files as texts (daemon/page.c): its comment says why they are one answer.
PAGE := $(wildcard daemon/page/page.*)
$(B)/page_text.c: $(PAGE)
	$(Q)mkdir -p $(@D); { echo 'extern const char pd_page_html[], pd_page_css[], pd_page_js[];'; \
	 for f in $(PAGE); do echo "const char pd_page_$${f##*.}[] = {"; od -An -v -tx1 $$f | sed 's/ \(..\)/0x\1,/g'; echo '0 };'; done; } > $@.new && mv $@.new $@
$(B)/page_text.o: $(B)/page_text.c $(B)/.flags
	$(Q)$(CC) $(ALL_CFLAGS) -c -o $@ $<
$(B)/%.a: ; $(Q)rm -f $@; $(AR) rcs $@ $^
$(B)/tests/support.a: $(HELPERS)

# --- rules -----------------------------------------------------------------------------------
# What the kernels of an overlay may use beyond the baseline, by the first word of the file's name (avx2_rows.c: ISA.avx2). On another
# architecture these files compile to nothing.
ifneq ($(filter x86_64%,$(TARGET)),)
ISA.sse     := -mssse3 -msse4.1 -mno-avx
ISA.avx2    := -mavx2 -mfma -mf16c
ISA.avx512  := $(ISA.avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512vbmi
$(B)/tests/support/avx512_emulated.o: ISA := $(ISA.avx2) -O1 -g1 -fno-sanitize=undefined -Wno-psabi
endif
ifneq ($(filter aarch64%,$(TARGET)),)
ISA.neon    := -g1 # what a debugger would want of them takes twice as long to compile as the code
ISA.dotprod := -march=armv8.2-a+dotprod -g1
endif
$(B)/foundry/cpu/%.o: HOT = -fno-stack-protector
$(B)/foundry/cpu/%.o: ISA = $(ISA.$(firstword $(subst _, ,$(basename $(notdir $@)))))
$(B)/foundry/%.o: $(FOUNDRY)/%.c $(B)/.flags
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -c -o $@ $<
$(B)/%.o: %.c $(B)/.flags
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -c -o $@ $<
$(B)/engine/version.o: CPPFLAGS += -DPN_VERSION='"$(VERSION)"' -DPN_BUILD='"$(shell $(GIT) rev-parse --short=12 HEAD 2>/dev/null || echo unknown)"'
$(B)/engine/version.o: $(B)/.commit
$(B)/pantheond: $(B)/daemon/pantheond.o $(LIBS)
$(B)/pantheon-$(BACKEND): $(B)/daemon/pantheon.o $(LIBS)
$(B)/pantheon-reconcile: $(B)/daemon/pantheon-reconcile.o $(LIBS)
$(PROGS:%=$(B)/%):
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS.$(FLAVOUR)) $(LDFLAGS) -o $@ $^ $(DAEMON_LIBS) $(CORE_LIBS)
# Allocations that a test can fail and count (tests/support/alloc.h).
WRAP := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=mmap
$(TESTS): $(B)/%: $(B)/%.o $(B)/tests/support/alloc.o $(B)/tests/support.a $(LIBS)
	$(Q)$(CC) $(ALL_CFLAGS) $(WRAP) $(LDFLAGS) -o $@ $^ -lcmocka $(DAEMON_LIBS) $(CORE_LIBS)
$(BENCHES) $(TOOLS): $(B)/%: $(B)/%.o $(B)/tests/support/alloc.o $(B)/tests/support.a $(LIBS)
	$(Q)$(CC) $(ALL_CFLAGS) $(WRAP) $(LDFLAGS) -o $@ $^ $(DAEMON_LIBS) $(CORE_LIBS)
# The fuzzers' inputs as ordinary tests.
$(REPLAYS): $(B)/tests/fuzz/replay_%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/replay.o $(B)/tests/support/alloc.o $(B)/tests/support.a $(LIBS)
	$(Q)$(CC) $(ALL_CFLAGS) $(WRAP) $(LDFLAGS) -o $@ $^ -lcmocka $(DAEMON_LIBS) $(CORE_LIBS)
$(FUZZERS): $(B)/%: $(B)/%.o $(B)/tests/support.a $(LIBS)
	$(Q)$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ $(DAEMON_LIBS) $(CORE_LIBS)
# Objects are rebuilt when the flags change, not only when sources do; -Werror changes none.
$(B)/.flags: FORCE
	$(Q)mkdir -p $(B)/inc; ln -sfn $(abspath $(FOUNDRY)) $(B)/inc/foundry; \
	 echo '$(CC) $(filter-out -Werror,$(ALL_CFLAGS))' | cmp -s - $@ || echo '$(CC) $(filter-out -Werror,$(ALL_CFLAGS))' > $@
$(B)/.commit: FORCE
	$(Q)mkdir -p $(B); c=$$($(GIT) rev-parse HEAD 2>/dev/null || echo unknown); echo "$(VERSION) $$c" | cmp -s - $@ || echo "$(VERSION) $$c" > $@
# What people look for at the root: copies of what was built last.
root-%: $(B)/% FORCE
	$(Q)cmp -s $< $* || cp $< $*
	$(Q)case $* in pantheon-$(BACKEND)) ln -sfn $* pantheon;; esac
FORCE:

# --- use -------------------------------------------------------------------------------------
deps:
	$(Q)scripts/deps.sh build
demo: deps
	$(Q)$(MAKE) --no-print-directory all
	$(Q)scripts/get-model.sh
	$(Q)exec $(PYTHON) scripts/demo.py $(if $(ONCE),--once) etc/demo.yaml

# --- tests -----------------------------------------------------------------------------------
tests: $(TESTS) $(REPLAYS) $(TOOLS) $(B)/pantheon-$(BACKEND) $(B)/pantheond
test: tests
	$(Q)B=$(B) FUZZ_SEEDS='$(foreach f,$(patsubst $(B)/tests/fuzz/fuzz_%,%,$(FUZZERS)),$(f)=$(SEEDS.$(f)))' tests/run $(TESTS) $(REPLAYS)
bench: $(BENCHES)
	$(Q)for b in $(BENCHES); do $$b || exit 1; done
# This build against llama.cpp and ik_llama.cpp on this machine, in alternation: hours, with nothing else running. PEERS=DIR keeps what is fetched,
# built and made; PEER_IK=CHECKOUT; BENCH_MODEL_TOOL=FILE; PEERS_ARGS='--rows PATTERN --rounds N --json FILE ...' (--help).
bench-peers: $(B)/pantheon-$(BACKEND) $(B)/tests/bench/bench_host
	$(Q)$(foreach v,PEERS PEER_IK BENCH_MODEL_TOOL,$(if $($(v)),$(v)='$(abspath $($(v)))')) $(PYTHON) tests/bench/peers $(B) $(PEERS_ARGS)
check-peers: ; $(Q)$(PYTHON) tests/bench/test_peers.py
# Each fuzzer for FUZZ_SECONDS (default 60), from the test cases as seeds; what it finds new is kept in build/fuzz/corpus.
SEEDS.facts    := tests/cases/plan
SEEDS.gguf     := tests/data/gguf
SEEDS.hf_tokenizer := tests/cases/hf_tokenizer
SEEDS.jinja    := tests/cases/chat
SEEDS.manifest := tests/cases/manifest
SEEDS.request  := tests/cases/http
SEEDS.safetensors := tests/data/safetensors
fuzz:
	$(Q)$(MAKE) --no-print-directory FLAVOUR=fuzz CC=clang fuzzers
	$(Q)$(foreach f,$(FUZZERS:$(B)/%=$(O)/fuzz/%),n=$(f:$(O)/fuzz/tests/fuzz/fuzz_%=%); echo "fuzz $$n"; mkdir -p $(O)/fuzz/corpus/$$n; \
	 $(f) -max_total_time=$(or $(FUZZ_SECONDS),60) -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
	 $(O)/fuzz/corpus/$$n tests/fuzz/corpus/$$n $(SEEDS.$(f:$(O)/fuzz/tests/fuzz/fuzz_%=%)) || exit 1; )
fuzzers: $(FUZZERS)
# MUTANTS grammars, as many schemas, lists of tools and saved sessions, each changed here and there: no crash, none that takes a second. Meant for FLAVOUR=asan.
check-mutants: $(B)/tests/fuzz/replay_grammar $(B)/tests/fuzz/replay_schema $(B)/tests/fuzz/replay_tools $(B)/tests/fuzz/replay_blob
	$(Q)MUTANTS=$(or $(MUTANTS),10000) B=$(B) tests/run $^
lint: check-layers check-headers check-symbols check-isa check-banned check-size
check-layers:  ; $(Q)tests/lint/layers
check-banned:  ; $(Q)tests/lint/banned
check-size:    ; $(Q)tests/lint/size
check-symbols: $(LIBS) ; $(Q)tests/lint/symbols $(B)
check-isa:     $(LIBS) ; $(Q)tests/lint/isa $(B)
check-headers: ; $(Q)CC='$(CC)' WARN='$(WARN)' tests/lint/headers
check-docs: $(B)/pantheon-$(BACKEND) $(B)/pantheon-reconcile $(B)/pantheond ; $(Q)PYTHON=$(PYTHON) scripts/gen-docs.sh --check $(B)/pantheon-$(BACKEND)
# The library as a stranger uses it: one header, one archive, these four flags.
check-embed: $(B)/libpantheon.a
	$(Q)$(CC) -std=c11 -Wall -Wextra -Werror -Iinclude $(CFLAGS.$(FLAVOUR)) -o $(B)/embed examples/embed.c $< -ljansson -lm -lpthread -ldl
	$(Q)if [ -f models/SmolLM2-135M-Instruct.Q4_1.gguf ]; then $(B)/embed models/SmolLM2-135M-Instruct.Q4_1.gguf 'Say hello.' && echo; fi
# Every case of the reference data whose types and families this build has: what needs C (quants, streams of tokens; of the committed data it
# is in `test`), then all that the command line can show.
GOLDENS      ?= tests/data/goldens
GOLDEN_TESTS := $(addprefix $(B)/tests/,foundry/test_tok_golden engine/test_llama engine/test_drift)
check-goldens: $(GOLDEN_TESTS) $(B)/tests/foundry/test_quant $(B)/pantheon-$(BACKEND)
	$(Q)[ -d '$(GOLDENS)/models' ] || { echo 'check-goldens: GOLDENS=DIR, the folder with models/, quants/, tokenizers/ and templates/'; exit 2; }
	$(Q)[ '$(GOLDENS)' = tests/data/goldens ] || GOLDENS='$(abspath $(GOLDENS))' tests/run $(GOLDEN_TESTS)
	$(Q)$(PYTHON) tests/goldens/run.py '$(GOLDENS)' $(B)/pantheon-$(BACKEND) $(B)/tests/foundry/test_quant
# Real vocabularies with the ids of their texts, fetched once (VOCABS=DIR: from there).
VOCABS ?= $(O)/vocabs
check-vocabs: $(B)/tests/foundry/test_tok_golden
	$(Q)$(PYTHON) tests/goldens/vocabs.py '$(abspath $(VOCABS))' $<
# The JSON-Schema-Test-Suite, fetched once (SCHEMAS=DIR: from there), against the grammars of its schemas.
SCHEMAS ?= $(O)/schemas
check-schemas: $(B)/tests/gen/check_schemas
	$(Q)$(PYTHON) tests/goldens/schemas.py '$(abspath $(SCHEMAS))' $< docs/structured-output.md
# 64-bit Arm, built by a cross compiler and run under an emulator. QUICK=1: what the slow emulator does in two minutes.
ARM_TESTS := $(addprefix $(B)/tests/,$(addprefix foundry/test_,kernels quant dtype device gguf file sim tok tok_golden unicode) \
 $(addprefix engine/test_,api kv) \
 $(if $(QUICK),,$(addprefix foundry/test_,ops tiny tok_pre) $(addprefix engine/test_,engine llama model replicas sched value)))
check-arm:
	$(Q)scripts/deps.sh cross build-aarch64/sysroot
	$(Q)$(MAKE) --no-print-directory FLAVOUR=release CC=aarch64-linux-gnu-gcc O=build-aarch64 test-arm
test-arm: $(ARM_TESTS) $(B)/pantheon-$(BACKEND)
	$(Q)tests/arm $(B) '$(SYSROOT)' '$(GOLDENS)' $(ARM_TESTS)
check-deb-arm64:
	+$(Q)$(MAKE) --no-print-directory PKG_ARCH=arm64 deb
	$(Q)tests/deb-arm64 $(O)/pkg/deb/pantheon_$(VERSION)-1_arm64.deb build-aarch64/sysroot
# The daemon as clients meet it: a venv with the official client, made once for each requirements.txt, and pytest over it, two files at a time: most of the
# time these wait for one another.
VENV := $(O)/venv
$(VENV)/.made: tests/e2e/requirements.txt
	$(Q)rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) && $(VENV)/bin/pip install --quiet --disable-pip-version-check -r $< && touch $@
e2e: $(VENV)/.made $(B)/pantheond $(B)/pantheon-reconcile $(B)/pantheon-$(BACKEND) $(B)/tests/gen/tiny $(B)/tests/gen/script
	$(Q)B=$(B) $(if $(SOAK_SECONDS),SOAK_SECONDS=$(SOAK_SECONDS) SOAK_CLIENTS=$(SOAK_CLIENTS)) $(VENV)/bin/python -m pytest -c tests/e2e/pytest.ini -n 2 --dist loadfile tests/e2e $(PYTEST_ARGS)
# LangChain and LiteLLM, and schemathesis over /openapi.json, in a venv of their own.
CLIENTS := $(O)/venv-clients
$(CLIENTS)/.made: tests/e2e/clients.txt
	$(Q)rm -rf $(CLIENTS) && $(PYTHON) -m venv $(CLIENTS) && $(CLIENTS)/bin/pip install --quiet --disable-pip-version-check -r $< && touch $@
check-clients: $(CLIENTS)/.made $(B)/pantheond $(B)/tests/gen/tiny $(B)/tests/gen/script
	$(Q)B=$(B) $(CLIENTS)/bin/python -m pytest -c tests/e2e/pytest.ini -W ignore tests/e2e/test_clients.py tests/e2e/test_schema.py tests/e2e/test_random_schemas.py $(PYTEST_ARGS)
# Ten minutes of 64 clients in the release build, then the same under AddressSanitizer and under ThreadSanitizer.   SOAK="asan tsan"
soak:
	$(Q)for f in $(or $(SOAK),release asan tsan); do \
	 $(MAKE) --no-print-directory FLAVOUR=$$f SOAK_SECONDS=$(or $(SOAK_SECONDS),600) SOAK_CLIENTS=$(or $(SOAK_CLIENTS),64) PYTEST_ARGS='-n 0 -s -k many_clients' e2e || exit 1; done
# The packages' whole life under systemd as PID 1, in a container of its own.
check-boot: deb rpm $(B)/tests/gen/script
	$(Q)scripts/boot-test.sh $(B) $(O)/pkg/deb $(O)/pkg/rpm
# A newcomer's hour: docs/install.md and docs/quickstart.md to the letter, in a fresh Debian of their own, with what is compiled here.
check-newcomer: all
	$(Q)scripts/check-newcomer.sh $(B)
check-deps:
	$(Q)scripts/deps.sh check
check: check-deps
	$(Q)$(MAKE) --no-print-directory all
	$(Q)scripts/get-model.sh
	$(Q)for t in test lint check-docs check-embed check-peers check-goldens e2e; do $(MAKE) --no-print-directory $$t || exit 1; done # one by one: some measure time
# The install target of the packages too: DESTDIR, prefix and the folders above say where. Nothing is enabled, started or made a user of here.
install: $(PROGS:%=$(B)/%) $(B)/libpantheon.a
	install -Dm755 $(B)/pantheon-$(BACKEND) $(DESTDIR)$(bindir)/pantheon-$(BACKEND)
	ln -sfn pantheon-$(BACKEND) $(DESTDIR)$(bindir)/pantheon
	install -Dm755 $(B)/pantheond $(DESTDIR)$(sbindir)/pantheond
	install -Dm755 $(B)/pantheon-reconcile $(DESTDIR)$(bindir)/pantheon-reconcile
	install -Dm644 $(B)/libpantheon.a $(DESTDIR)$(libdir)/libpantheon.a
	install -Dm644 include/pantheon.h $(DESTDIR)$(includedir)/pantheon.h
	$(Q)f=$(DESTDIR)$(sysconfdir)/pantheon/models.yaml; \
	 if [ -e $$f ]; then echo "$$f is kept as it is"; else echo "install -Dm644 etc/models.yaml $$f"; install -Dm644 etc/models.yaml $$f; fi
	$(Q)f=$(DESTDIR)$(unitdir)/pantheond.service; mkdir -p $$(dirname $$f); echo "install $$f"; \
	 sed 's|@sbindir@|$(sbindir)|; s|@bindir@|$(bindir)|; s|@sysconfdir@|$(sysconfdir)|g; s|@udevdir@|$(udevdir)|' packaging/systemd/pantheond.service.in > $$f; chmod 644 $$f
	install -Dm644 packaging/systemd/pantheond.socket $(DESTDIR)$(unitdir)/pantheond.socket
	install -Dm644 packaging/systemd/pantheon.sysusers $(DESTDIR)$(sysusersdir)/pantheon.conf
	install -Dm644 packaging/systemd/pantheon.tmpfiles $(DESTDIR)$(tmpfilesdir)/pantheon.conf
	install -Dm644 packaging/udev/40-pantheon.rules $(DESTDIR)$(udevdir)/40-pantheon.rules
	$(Q)$(foreach f,$(wildcard docs/man/*.[1-8]),install -Dm644 $(f) $(DESTDIR)$(mandir)/man$(patsubst .%,%,$(suffix $(f)))/$(notdir $(f)) &&) true
	$(Q)[ ! -e docs/man/pantheon.1 ] || ln -sfn pantheon.1 $(DESTDIR)$(mandir)/man1/pantheon-$(BACKEND).1
	$(Q)$(foreach c,bash:bash-completion/completions zsh:zsh/site-functions fish:fish/vendor_completions.d,for f in packaging/completions/$(firstword $(subst :, ,$(c)))/*; do \
	 [ ! -e $$f ] || install -Dm644 $$f $(DESTDIR)$(datadir)/$(lastword $(subst :, ,$(c)))/$$(basename $$f) || exit 1; done;) true
	$(Q)for f in docs/*.md README.md LICENSE; do install -Dm644 $$f $(DESTDIR)$(docdir)/$$(basename $$f) || exit 1; done
	$(Q)for f in etc/demo.yaml $(wildcard etc/examples/* examples/*); do \
	 install -Dm$$([ -x $$f ] && echo 755 || echo 644) $$f $(DESTDIR)$(docdir)/examples/$$(basename $$f) || exit 1; done
	$(Q)for f in $$(find contrib -type f ! -name '*.pyc'); do install -Dm$$([ -x $$f ] && echo 755 || echo 644) $$f $(DESTDIR)$(docdir)/$$f || exit 1; done
	$(Q)[ -n '$(DESTDIR)' ] || ! [ -d /run/systemd/system ] || echo 'Installed. As a service: systemd-sysusers; systemd-tmpfiles --create; systemctl daemon-reload; systemctl enable --now pantheond'
# Packages of what is installed, in $(O)/pkg, checked by lintian and rpmlint: of this machine's architecture, or cross-built with PKG_ARCH=arm64.
deb rpm:
	+$(Q)packaging/build.sh $@ '$(VERSION)' '$(O)' '$(PKG_ARCH)'
help:
	@echo 'make [all]         pantheon-$(BACKEND) (and its link pantheon), pantheond, pantheon-reconcile, libpantheon.a'
	@echo 'make demo          dependencies, build, demo model, one question; serves until Ctrl-C (ONCE=1: stops after the answer)'
	@echo 'make check         every test that needs no special hardware, the lints, end to end'
	@echo 'make test          the unit tests alone (no network); make tests: builds them'
	@echo 'make check-goldens   every reference case that this build can run (GOLDENS=DIR: of another folder than tests/data/goldens)'
	@echo 'make check-vocabs  real vocabularies against llama.cpp'"'"'s test texts (fetches 77 MB once; VOCABS=DIR)'
	@echo 'make check-schemas  the JSON-Schema-Test-Suite against the grammars of its schemas (fetches it once; SCHEMAS=DIR)'
	@echo 'make check-mutants  MUTANTS=10000 changed grammars, as many schemas, lists of tools and saved sessions; best with FLAVOUR=asan'
	@echo 'make check-arm     cross-compiles for 64-bit Arm and tests that build under an emulator (Debian; QUICK=1: the most important)'
	@echo 'make check-deb-arm64   the package for 64-bit Arm, cross-built, and its programs under an emulator'
	@echo 'make check-clients LangChain, LiteLLM and schemathesis against the daemon, in a venv of their own'
	@echo 'make check-boot    a life under systemd in a container (root, systemd-container, mmdebstrap)'
	@echo 'make check-newcomer  docs/install.md and docs/quickstart.md followed to the letter in a fresh Debian (root; the same)'
	@echo 'make bench-peers   against llama.cpp and ik_llama.cpp, in alternation (PEERS=DIR PEER_IK=DIR PEERS_ARGS="--rows PATTERN --help")'
	@echo 'make deb rpm       packages in $(O)/pkg (PKG_ARCH=arm64: cross-built)'
	@echo 'make lint bench fuzz soak install clean   (soak: 64 clients for ten minutes, in three builds; fuzz: each fuzzer for FUZZ_SECONDS=60)'
	@echo 'USE_BLAS=1         with --isa blas: OpenBLAS (libopenblas.so.0, opened at run time) for long batches on F32 weights'
	@echo 'FLAVOUR=release|debug|asan|tsan|fuzz  DEBUG=1  CC=clang  V=1 (show commands)  O=DIR (build folder)  FOUNDRY=DIR'
	@echo 'install: prefix=$(prefix) DESTDIR=... sysconfdir=$(sysconfdir)'
clean: ; rm -rf $(O) pantheon pantheon-$(BACKEND) pantheond pantheon-reconcile libpantheon.a
.PHONY: deb rpm all pantheon libpantheon.a test tests bench bench-peers check-peers fuzz fuzzers lint check-layers check-headers check-symbols check-isa check-banned check-size check-docs check-embed check-goldens check-arm test-arm check-vocabs check-schemas check-mutants check-boot check-deb-arm64 check-newcomer check-clients e2e soak check-deps check deps demo install help clean FORCE
.DEFAULT_GOAL := all
.SECONDARY:
-include $(shell find $(B) -name '*.d' 2>/dev/null)
