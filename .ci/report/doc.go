// Command report reads what `go test -json` says and tells what people want to
// know: the closing line of every package, all that failed tests said, and which
// tests were skipped. Its exit status is 1 when a package failed, when nothing was
// tested, and when a test was skipped without a good excuse: run as root, with
// every program installed, there is none but the kernel's or root's own.
//
//	go test -json ./... | go run ./.ci/report
//
// With the command as arguments, and the packages behind --, it runs the tests itself, and a test that failed once more
// by itself; what passes then is reported as FLAKY (again.go has the rules):
//
//	go run ./.ci/report go test -json -- ./...
//
// It is part of make test and not of the product.
package main
