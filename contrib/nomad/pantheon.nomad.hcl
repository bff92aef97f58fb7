# pantheond on a Nomad cluster, with HAProxy in front:   nomad job run contrib/nomad/pantheon.nomad.hcl
# tests/e2e/test_nomad.py reads this file, starts pantheond with its manifest and checks the HAProxy configuration that it makes. docs/scaling.md
# says when to use it.
#
# A client node needs pantheond (make install), haproxy, the models, and in its configuration
#   client {
#     max_kill_timeout = "2m"                              # Nomad's own 30 s would cut kill_timeout below
#     host_volume "models" { path = "/var/lib/pantheon/models" }
#   }
# and the cluster the file of API keys:   nomad var put nomad/jobs/pantheon keys=@/etc/pantheon/keys

variable "daemons" {
  type        = number
  default     = 2
  description = "How many daemons. Each holds all of the models."
}

job "pantheon" {
  datacenters = ["*"]
  type        = "service"

  group "daemon" {
    count = var.daemons

    # One more is started beside the others and must be ready (its models loaded) before one of the old ones is told to stop; one at a time.
    # Without room for one more: canary = 0, and auto_promote away.
    update {
      max_parallel      = 1
      canary            = 1
      auto_promote      = true
      auto_revert       = true
      health_check      = "checks"
      min_healthy_time  = "10s"
      healthy_deadline  = "10m" # a load from a slow disk
      progress_deadline = "20m"
    }

    migrate { # when a node is drained
      max_parallel     = 1
      health_check     = "checks"
      min_healthy_time = "10s"
      healthy_deadline = "10m"
    }

    spread {
      attribute = "${node.unique.id}"
    }

    network {
      port "api" {}
    }

    service {
      name     = "pantheon"
      port     = "api"
      provider = "nomad"
      tags     = ["haproxy", "openai-api"] # what the template below looks for

      check {
        name     = "ready"
        type     = "http"
        path     = "/ready" # 200 when the first pass is over and a model serves; 503 from the moment it is told to stop
        interval = "2s"
        timeout  = "2s"
      }
    }

    # It is taken out of the services first; HAProxy has read that before the daemon begins to refuse.
    shutdown_delay = "5s"

    volume "models" {
      type      = "host"
      source    = "models"
      read_only = true
    }

    # The state: the last good manifest and the count of generations.
    ephemeral_disk {
      size   = 300
      sticky = true
    }

    restart {
      attempts = 3
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }

    task "pantheond" {
      driver       = "exec"
      kill_signal  = "SIGTERM" # no new requests; running ones have server.drain
      kill_timeout = "90s"     # more than server.drain and the ten seconds in which what is left is ended

      config {
        command = "/usr/local/sbin/pantheond"
        args    = ["--config", "${NOMAD_TASK_DIR}/models.yaml", "--log-format", "json"]
      }

      env {
        STATE_DIRECTORY = "${NOMAD_ALLOC_DIR}/data"
      }

      volume_mount {
        volume      = "models"
        destination = "/models"
        read_only   = true
      }

      # Instead of the volume: each allocation fetches its model, and source.path below is local/chat.gguf.
      # artifact {
      #   source      = "https://models.example.org/chat.gguf"
      #   destination = "local/chat.gguf"
      #   mode        = "file"
      #   options { checksum = "sha256:..." }
      # }

      template {
        destination   = "local/models.yaml"
        change_mode   = "signal"
        change_signal = "SIGHUP" # models that did not change keep running
        data          = <<-MANIFEST
          version: 1
          server:
            listen: [ "0.0.0.0:{{ env "NOMAD_PORT_api" }}" ]
            api_keys_file: {{ env "NOMAD_SECRETS_DIR" }}/keys
            allowed_hosts: [ "*" ]                         # behind HAProxy, which clients know by another name
            limits: { connections: 1024, connections_per_address: 1024 }   # all come from HAProxy's address
            drain: 60s
          defaults:
            max_sessions: 16
            max_concurrent: 4
            queue: { depth: 32, timeout: 120s }
          models:
            - name: chat
              source: { path: /models/SmolLM2-135M-Instruct.Q4_1.gguf }
        MANIFEST
      }

      template {
        destination = "secrets/keys"
        perms       = "600"
        change_mode = "noop" # the daemon looks at it every second
        data        = <<-KEYS
          {{ with nomadVar "nomad/jobs/pantheon" }}{{ .keys }}{{ end }}
        KEYS
      }

      resources {
        cores  = 4    # compute threads are as many as the task may use
        memory = 4096 # weights, KV of max_sessions and some 100 MB: `pantheon inspect MODEL` says how much; the mapped file counts too
      }
    }
  }

  group "haproxy" {
    count = 1

    network {
      port "http" {
        static = 8080
      }
    }

    service {
      name     = "pantheon-api"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/ready"
        interval = "5s"
        timeout  = "2s"
      }
    }

    task "haproxy" {
      driver       = "exec"
      kill_signal  = "SIGUSR1" # takes no new connections and ends with the last stream
      kill_timeout = "90s"

      config {
        command = "/usr/sbin/haproxy"
        args    = ["-W", "-db", "-f", "${NOMAD_TASK_DIR}/haproxy.cfg"]
      }

      # The file of contrib/haproxy, read when the job is submitted, with the daemons that Nomad knows in place of its servers. SIGUSR2: it is read
      # again, and running streams end with the old one.
      template {
        destination   = "local/haproxy.cfg"
        change_mode   = "signal"
        change_signal = "SIGUSR2"
        data          = <<-CONFIG
          ${regex_replace(file("../haproxy/haproxy.cfg"), "(?m)^    server .*\\n", "")}
          {{ range nomadService "pantheon" }}{{ if .Tags | contains "haproxy" }}
              server {{ .ID }} {{ .Address }}:{{ .Port }}
          {{ end }}{{ end }}
        CONFIG
      }

      resources {
        cpu    = 500
        memory = 512
      }
    }
  }
}
