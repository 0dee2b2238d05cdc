module svcctl.io/svcctl/ci/package/site

go 1.26.0

require github.com/yuin/goldmark v1.7.13
