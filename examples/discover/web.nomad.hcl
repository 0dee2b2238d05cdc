# nomad job run web.nomad.hcl
job "web" {
  group "web" {
    count = 2
    network {
      port "http" {}
    }
    service {
      name     = "web"
      port     = "http"
      provider = "nomad"
    }
    task "server" {
      driver = "docker"
      config {
        image = "hashicorp/http-echo"
        args  = ["-listen", ":${NOMAD_PORT_http}", "-text", "hello"]
        ports = ["http"]
      }
    }
  }
}
