// Package frame is what every controller of Berth needs: limits of texts that the API server stores, what the cache keeps of objects and how it finds them, which errors are refusals, and the
// ControllerRevisions of an object. It knows no kind of Berth's but by what the cache keeps of it, and it decides nothing.
//
// Controllers import this package, and no other controller.
package frame
