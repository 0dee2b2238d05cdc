// Command answer is the client and the server of the tests of the packages.
package main
